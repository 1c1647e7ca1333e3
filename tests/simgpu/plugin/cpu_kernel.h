// A CPU kernel that runs on the memory of a GPU.
//
// C++ and not the C API for kernels, whose functions for variables are not in the wheel. Contexts
// of kernels are made by hand, which needs `-fno-access-control`.
#ifndef SIMGPU_CPU_KERNEL_H_
#define SIMGPU_CPU_KERNEL_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

// Eigen first: TensorFlow's headers do not include all that they use.
#include "unsupported/Eigen/CXX11/Tensor"

#include "machine.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

using tensorflow::DeviceBase;
using tensorflow::OpKernel;
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
inline HostedDevice* HostedDeviceOf(DeviceBase* gpu) {
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

}  // namespace simgpu

#endif
