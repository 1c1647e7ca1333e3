// How much a kernel has to do: multiplications, and bytes of device memory to read and write.
#ifndef SIMGPU_WORK_H_
#define SIMGPU_WORK_H_

#include <cstdint>
#include <string>
#include <vector>

namespace simgpu {

// A tensor in device memory that a kernel reads or writes.
struct Argument {
  std::vector<int64_t> shape;
  int64_t item_size = 0;  // In bytes; 0 if it is not there.

  int64_t NumItems() const;
  int64_t NumBytes() const { return NumItems() * item_size; }
};

// What is known of an op before it is called.
struct OpFacts {
  std::string type;
  bool transposes_first = false;  // `transpose_a` of a product.
  std::string equation;           // Of an Einsum.
  int num_variables = 0;          // Arguments that are resources.
};

struct Work {
  double flops = 0;
  double bytes = 0;
  bool is_half = false;  // In 16 bits, which GPUs multiply faster.
};

// Whether a GPU would launch anything for an op whose arguments are not all in host memory.
bool Launches(const std::string& type);

Work WorkOf(const OpFacts& op, const std::vector<Argument>& inputs,
            const std::vector<Argument>& outputs);

}  // namespace simgpu

#endif
