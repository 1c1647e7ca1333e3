// Registers the simulated GPUs with TensorFlow, which looks for functions of these names.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "copies.h"
#include "exported.h"
#include "machine.h"
#include "memory.h"
#include "settings.h"
#include "streams.h"
#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace simgpu {
namespace {

constexpr char kDeviceType[] = "GPU";

void CountDevices(const SP_Platform*, int* count, TF_Status* status) {
  *count = NumDevices();
  SetOk(status);
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* parameters, TF_Status* status) {
  Machine& machine = TheMachine();
  Guard guard(machine.lock);
  while (static_cast<int>(machine.devices.size()) <= parameters->ordinal) {
    auto device = std::make_unique<Device>();
    device->index = machine.devices.size();
    device->memory_limit = MemoryOfDevice(device->index);
    device->bus_id = "0000:" + std::to_string(10 + device->index) + ":00.0";
    machine.devices.push_back(std::move(device));
  }
  Device& self = *machine.devices[parameters->ordinal];
  SP_Device* device = parameters->device;
  device->struct_size = SP_DEVICE_STRUCT_SIZE;
  device->ordinal = parameters->ordinal;
  device->device_handle = &self;
  device->hardware_name = "Simulated GPU";
  device->device_vendor = "simgpu";
  device->pci_bus_id = self.bus_id.c_str();
  SetOk(status);
}

void CreateDeviceFunctions(const SP_Platform*, SE_CreateDeviceFnsParams* parameters,
                           TF_Status* status) {
  SP_DeviceFns* functions = parameters->device_fns;
  functions->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  functions->get_numa_node = [](const SP_Device*) { return 0; };
  functions->get_memory_bandwidth = [](const SP_Device*) { return int64_t{-1}; };
  functions->get_gflops = [](const SP_Device*) { return -1.0; };
  SetOk(status);
}

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* parameters,
                    TF_Status* status) {
  SP_StreamExecutor* executor = parameters->stream_executor;
  executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  SetMemoryFunctions(executor);
  SetStreamFunctions(executor);
  SetCopyFunctions(executor);
  SetOk(status);
}

void CreateTimerFunctions(const SP_Platform*, SP_TimerFns* functions, TF_Status* status) {
  functions->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  SetTimerFunctions(functions);
  SetOk(status);
}

void SameGraph(void*, const TF_Buffer* graph, const TF_GrapplerItem*, TF_Buffer* optimized,
               TF_Status* status) {
  void* copy = malloc(graph->length);
  memcpy(copy, graph->data, graph->length);
  optimized->data = copy;
  optimized->length = graph->length;
  optimized->data_deallocator = [](void* data, size_t) { free(data); };
  SetOk(status);
}

}  // namespace
}  // namespace simgpu

EXPORTED void SE_InitPlugin(SE_PlatformRegistrationParams* parameters, TF_Status* status) {
  using namespace simgpu;
  SP_Platform* platform = parameters->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "SIMGPU";
  platform->type = kDeviceType;
  platform->supports_unified_memory = 0;
  platform->use_bfc_allocator = 1;
  platform->force_memory_growth = GrowsMemory();
  SP_PlatformFns* functions = parameters->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = CountDevices;
  functions->create_device = CreateDevice;
  functions->create_device_fns = CreateDeviceFunctions;
  functions->create_stream_executor = CreateExecutor;
  functions->create_timer_fns = CreateTimerFunctions;
  // TensorFlow calls all of these. There is nothing to do: devices live as long as the process.
  functions->destroy_device = [](const SP_Platform*, SP_Device*) {};
  functions->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  functions->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  functions->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  parameters->destroy_platform = [](SP_Platform*) {};
  parameters->destroy_platform_fns = [](SP_PlatformFns*) {};
  SetOk(status);
}

// The kernels are the CPU's. They know neither NCHW, which TensorFlow would rewrite convolutions
// on GPUs to, nor its fused ops for GPUs.
EXPORTED void TF_InitGraph(TP_OptimizerRegistrationParams* parameters, TF_Status* status) {
  parameters->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  parameters->device_type = simgpu::kDeviceType;
  parameters->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  parameters->optimizer_configs->layout_optimizer = TF_TriState_Off;
  parameters->optimizer_configs->remapping = TF_TriState_Off;
  parameters->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  parameters->optimizer->optimize_func = simgpu::SameGraph;
  simgpu::SetOk(status);
}
