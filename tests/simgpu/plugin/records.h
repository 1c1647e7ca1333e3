// What ran when, in simulated time: the latest kernels and copies.
#ifndef SIMGPU_RECORDS_H_
#define SIMGPU_RECORDS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"

namespace simgpu {

// Kernels of the same node share it.
struct KernelName {
  std::string node, type;
};

constexpr int kHost = -1;

// A kernel, or a copy if it has no name.
struct Record {
  int device = 0;
  int stream = 0;  // Number of the device's stream.
  std::shared_ptr<const KernelName> name;
  int from = kHost, to = kHost;  // Devices, of a copy.
  int64_t num_bytes = 0;         // Of a copy.
  Nanos enqueued = 0;            // When the host asked for it.
  Nanos begin = 0, end = 0;
};

// Needs the machine's lock, as everything there.
class Records {
 public:
  void Add(const Record& record);
  void Clear() { latest_.clear(); }
  const std::deque<Record>& latest() const { return latest_; }

  // For the profiler: all records from now on, however many.
  void StartCollecting();
  std::vector<Record> StopCollecting();

 private:
  std::deque<Record> latest_;
  std::vector<Record> collected_;
  bool is_collecting_ = false;
};

}  // namespace simgpu

#endif
