// Kernels for GPUs, each with a CPU kernel inside that does the work.
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "cpu_kernel.h"
#include "exported.h"
#include "launcher.h"
#include "settings.h"
#include "tensorflow/core/framework/kernel_def.pb.h"

namespace simgpu {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;

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
