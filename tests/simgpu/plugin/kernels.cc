// Kernels for GPUs that are TensorFlow's CPU kernels, run on the memory of the device.
//
// C++ and not the C API for kernels, whose functions for variables are not in the wheel. Contexts
// of kernels are made by hand, which needs `-fno-access-control`.
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// Eigen first: TensorFlow's headers do not include all that they use.
#include "unsupported/Eigen/CXX11/Tensor"

#include "exported.h"
#include "machine.h"
#include "settings.h"
#include "streams.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "work.h"

namespace simgpu {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DeviceBase;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

// The device that a CPU kernel sees: threads are the host's, and all else is the GPU's.
class HostedDevice : public tensorflow::Device {
 public:
  explicit HostedDevice(DeviceBase* gpu)
      : tensorflow::Device(gpu->env(), gpu->attributes()), gpu_(gpu) {}

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    return gpu_->GetAllocator(attributes);
  }
  tensorflow::Allocator* GetScopedAllocator(tensorflow::AllocatorAttributes attributes,
                                            int64_t step) override {
    return gpu_->GetScopedAllocator(attributes, step);
  }
  tensorflow::ScopedAllocatorMgr* GetScopedAllocatorMgr() const override {
    return gpu_->GetScopedAllocatorMgr();
  }
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override {
    return gpu_->tensorflow_cpu_worker_threads();
  }
  const tensorflow::DeviceBase::AcceleratorDeviceInfo* tensorflow_accelerator_device_info()
      const override {
    return nullptr;
  }
  bool has_eigen_cpu_device() const override { return gpu_->has_eigen_cpu_device(); }
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override { return gpu_->eigen_cpu_device(); }
  tensorflow::ResourceMgr* resource_manager() override { return AsDevice()->resource_manager(); }
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   const tensorflow::AllocatorAttributes attributes,
                                   tensorflow::Tensor* tensor) override {
    return gpu_->MakeTensorFromProto(proto, attributes, tensor);
  }
  absl::Status Sync() override { return AsDevice()->Sync(); }

 private:
  tensorflow::Device* AsDevice() const { return static_cast<tensorflow::Device*>(gpu_); }

  DeviceBase* gpu_;
};

// One for each device, and never destroyed: kernels hold it.
HostedDevice* HostedDeviceOf(DeviceBase* gpu) {
  static std::mutex lock;
  static auto* devices = new std::map<std::pair<DeviceBase*, std::string>, HostedDevice*>;
  Guard guard(lock);
  HostedDevice*& device = (*devices)[{gpu, gpu->name()}];
  if (device == nullptr) device = new HostedDevice(gpu);
  return device;
}

// The CPU kernel inside one for a GPU.
struct CpuKernel {
  std::unique_ptr<OpKernel> kernel;
  HostedDevice* device = nullptr;

  // Which arguments lie in host memory is for the GPU's kernel to say.
  void TakeMemoryTypesOf(const OpKernel& outer) {
    using tensorflow::MemoryTypeVector;
    const_cast<MemoryTypeVector&>(kernel->input_memory_types_) = outer.input_memory_types_;
    const_cast<MemoryTypeVector&>(kernel->output_memory_types_) = outer.output_memory_types_;
  }
};

// A call of the CPU kernel with the arguments of a call of the GPU's.
class CpuCall {
 public:
  CpuCall(OpKernelContext* outer, const CpuKernel& cpu) : parameters_(*outer->params_) {
    parameters_.eigen_gpu_device = nullptr;
    parameters_.op_device_context = nullptr;
    parameters_.op_kernel = cpu.kernel.get();
    parameters_.device = cpu.device;
    context_ = std::make_unique<OpKernelContext>(&parameters_, outer->num_outputs());
  }

  OpKernelContext* context() { return context_.get(); }

  void GiveResultsTo(OpKernelContext* outer) {
    for (int i = 0; i < outer->num_outputs(); ++i) {
      tensorflow::TensorValue value = context_->release_output(i);
      if (value.tensor != nullptr) outer->outputs_[i] = value;
    }
    if (!context_->status().ok()) outer->SetStatus(context_->status());
  }

 private:
  OpKernelContext::Params parameters_;
  std::unique_ptr<OpKernelContext> context_;
};

SP_Stream StreamOf(OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(reinterpret_cast<TF_OpKernelContext*>(context), status);
  TF_DeleteStatus(status);
  return stream;
}

// Counts inputs that are not where TensorFlow was told to put them. On a real GPU they would crash
// the kernel, or be garbage.
void CountMisplaced(OpKernelContext* context, const OpKernel& kernel) {
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
  explicit Launcher(OpKernelConstruction* construction, const OpKernel& kernel)
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
    if (launches_ && machine.takes_time) work = WorkOf(facts_, Inputs(context, kernel), Outputs(context, kernel));
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
    for (int axis = 0; axis < tensor.dims(); ++axis) argument.shape.push_back(tensor.dim_size(axis));
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

class Kernel : public OpKernel {
 public:
  Kernel(OpKernelConstruction* construction, CpuKernel cpu)
      : OpKernel(construction), cpu_(std::move(cpu)), launcher_(construction, *this) {
    cpu_.TakeMemoryTypesOf(*this);
  }

  void Compute(OpKernelContext* context) override {
    const Nanos asked = Now();
    CountMisplaced(context, *this);
    CpuCall call(context, cpu_);
    cpu_.kernel->Compute(call.context());
    call.GiveResultsTo(context);
    launcher_.Launched(context, *this, asked);
  }

  bool IsExpensive() override { return false; }  // As on a GPU, where this is a launch.

 private:
  CpuKernel cpu_;
  Launcher launcher_;
};

class AsyncKernel : public AsyncOpKernel {
 public:
  AsyncKernel(OpKernelConstruction* construction, CpuKernel cpu)
      : AsyncOpKernel(construction), cpu_(std::move(cpu)), launcher_(construction, *this) {
    cpu_.TakeMemoryTypesOf(*this);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Nanos asked = Now();
    CountMisplaced(context, *this);
    auto call = std::make_shared<CpuCall>(context, cpu_);
    cpu_.kernel->AsAsync()->ComputeAsync(call->context(), [this, call, context, asked, done] {
      call->GiveResultsTo(context);
      launcher_.Launched(context, *this, asked);
      done();
    });
  }

 private:
  CpuKernel cpu_;
  Launcher launcher_;
};

OpKernel* CreateKernel(OpKernelConstruction* construction) {
  CpuKernel cpu;
  cpu.device = HostedDeviceOf(construction->device());
  OpKernel* kernel = nullptr;
  absl::Status status = tensorflow::CreateOpKernel(
      tensorflow::DeviceType("CPU"), cpu.device,
      cpu.device->GetAllocator(tensorflow::AllocatorAttributes()),
      construction->function_library(), construction->resource_manager(), construction->props_,
      construction->graph_def_version(), &kernel);
  if (!status.ok()) {
    construction->SetStatus(absl::Status(
        status.code(), absl::StrCat("A simulated GPU runs CPU kernels, and there is none for ",
                                    construction->def().op(), ": ", status.message())));
    return nullptr;
  }
  cpu.kernel.reset(kernel);
  if (kernel->AsAsync() != nullptr) return new AsyncKernel(construction, std::move(cpu));
  return new Kernel(construction, std::move(cpu));
}

}  // namespace
}  // namespace simgpu

EXPORTED void TF_InitKernel() {
  const std::string path = simgpu::PathOfKernelList();
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  tensorflow::KernelList list;
  if (!list.ParseFromString(content.str()) || list.kernel_size() == 0) {
    fprintf(stderr, "simgpu: no list of kernels at %s\n", path.c_str());
    return;
  }
  for (const tensorflow::KernelDef& kernel : list.kernel()) {
    // The registrar takes the definition over.
    tensorflow::kernel_factory::OpKernelRegistrar(new tensorflow::KernelDef(kernel), "simgpu",
                                                  &simgpu::CreateKernel);
  }
}
