// What a kernel does to its device beside computing: it takes time, and is counted.
#ifndef SIMGPU_LAUNCHER_H_
#define SIMGPU_LAUNCHER_H_

#include <memory>
#include <vector>

#include "machine.h"
#include "streams.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "work.h"

namespace simgpu {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

inline SP_Stream StreamOf(OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  TF_DeleteStatus(status);
  return stream;
}

// Counts inputs that are not where TensorFlow was told to put them. On a real GPU they would crash
// the kernel, or be garbage.
inline void CountMisplaced(OpKernelContext* context, const OpKernel& kernel) {
  Machine& machine = TheMachine();
  Guard guard(machine.lock);
  Device& device = *StreamOf(context)->device;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->has_input(i) || context->input_is_ref(i)) continue;
    const tensorflow::Tensor& input = context->input(i);
    if (input.NumElements() == 0 || !tensorflow::DataTypeCanUseMemcpy(input.dtype())) continue;
    const bool is_for_host = kernel.input_memory_types()[i] == tensorflow::HOST_MEMORY;
    const int owner = machine.OwnerOf(input.tensor_data().data());
    if (owner != (is_for_host ? -1 : device.index)) {
      ++device.counters.misplaced[absl::StrCat(
          kernel.type_string(), " input ", i, " belongs to the ", is_for_host ? "host" : "device",
          ", lies on ", owner)];
    }
  }
}

// What a kernel does to the time of its device.
class Launcher {
 public:
  Launcher(tensorflow::OpKernelConstruction* construction, const OpKernel& kernel)
      : name_(new KernelName{kernel.name(), kernel.type_string()}) {
    const auto& attributes = construction->def().attr();
    facts_.type = kernel.type_string();
    for (const char* name : {"transpose_a", "adj_x"}) {
      facts_.transposes_first |= attributes.count(name) > 0 && attributes.at(name).b();
    }
    if (attributes.count("equation") > 0) facts_.equation = attributes.at("equation").s();
    bool uses_device = false;
    for (int i = 0; i < kernel.num_inputs(); ++i) {
      uses_device |= kernel.input_memory_types()[i] == tensorflow::DEVICE_MEMORY;
      facts_.num_variables += kernel.input_type(i) == tensorflow::DT_RESOURCE;
    }
    for (int i = 0; i < kernel.num_outputs(); ++i) {
      uses_device |= kernel.output_memory_types()[i] == tensorflow::DEVICE_MEMORY;
    }
    launches_ = uses_device && Launches(facts_.type);
  }

  // After the kernel has computed, as the shapes of its outputs are part of its cost.
  void Launched(OpKernelContext* context, const OpKernel& kernel, Nanos asked) const {
    SP_Stream stream = StreamOf(context);
    Machine& machine = TheMachine();
    Work work;
    if (launches_ && machine.takes_time) {
      work = WorkOf(facts_, Inputs(context, kernel), Outputs(context, kernel));
    }
    Guard guard(machine.lock);
    Device& device = *stream->device;
    KernelCount& count = device.counters.kernels[facts_.type];
    ++count.num_kernels;
    if (!launches_) return;
    ++device.counters.launches;
    const Nanos duration = static_cast<Nanos>(machine.cost.OfKernel(work) * device.slowdown);
    count.busy += duration;
    const Span span = Occupy(stream, asked, duration);
    machine.records.Add(Record{.device = device.index,
                               .stream = stream->number,
                               .name = name_,
                               .enqueued = asked,
                               .begin = span.begin,
                               .end = span.end});
  }

 private:
  static Argument InDeviceMemory(const tensorflow::Tensor& tensor) {
    Argument argument;
    for (int64_t size : tensor.shape().dim_sizes()) argument.shape.push_back(size);
    argument.item_size = tensorflow::DataTypeSize(tensor.dtype());
    return argument;
  }

  static std::vector<Argument> Inputs(OpKernelContext* context, const OpKernel& kernel) {
    std::vector<Argument> found(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); ++i) {
      const bool is_there = context->has_input(i) && !context->input_is_ref(i);
      if (is_there && kernel.input_memory_types()[i] == tensorflow::DEVICE_MEMORY) {
        found[i] = InDeviceMemory(context->input(i));
      }
    }
    return found;
  }

  static std::vector<Argument> Outputs(OpKernelContext* context, const OpKernel& kernel) {
    std::vector<Argument> found(context->num_outputs());
    for (int i = 0; i < context->num_outputs(); ++i) {
      const tensorflow::Tensor* output = context->mutable_output(i);
      if (output != nullptr && kernel.output_memory_types()[i] == tensorflow::DEVICE_MEMORY) {
        found[i] = InDeviceMemory(*output);
      }
    }
    return found;
  }

  OpFacts facts_;
  std::shared_ptr<const KernelName> name_;
  bool launches_ = false;
};

}  // namespace simgpu

#endif
