#include "copies.h"

#include <algorithm>
#include <cstring>

#include "machine.h"
#include "streams.h"

namespace simgpu {
namespace {

void CountFromHost(const SP_Device* device, uint64_t size) {
  Guard guard(TheMachine().lock);
  DeviceOf(device).counters.from_host.Add(size);
}

void CountToHost(const SP_Device* device, uint64_t size) {
  Guard guard(TheMachine().lock);
  DeviceOf(device).counters.to_host.Add(size);
}

// Counted where the bytes come from, whichever device's stream moves them.
void CountToDevice(const SP_Device* device, const void* to, const void* from, uint64_t size) {
  Machine& machine = TheMachine();
  Guard guard(machine.lock);
  const int sender = machine.OwnerOf(from);
  Device& source = sender >= 0 ? *machine.devices[sender] : DeviceOf(device);
  source.counters.to_device[machine.OwnerOf(to)].Add(size);
}

// On a stream.

void FromHost(const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, const void* from,
              uint64_t size, TF_Status* status) {
  CountFromHost(device, size);
  memcpy(to->opaque, from, size);
  SetOk(status);
}

void ToHost(const SP_Device* device, SP_Stream, void* to, const SP_DeviceMemoryBase* from,
            uint64_t size, TF_Status* status) {
  CountToHost(device, size);
  memcpy(to, from->opaque, size);
  SetOk(status);
}

void ToDevice(const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to,
              const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  CountToDevice(device, to->opaque, from->opaque, size);
  memcpy(to->opaque, from->opaque, size);
  SetOk(status);
}

// While the host waits.

void FromHostNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                 TF_Status* status) {
  FromHost(device, nullptr, to, from, size, status);
}

void ToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
               TF_Status* status) {
  ToHost(device, nullptr, to, from, size, status);
}

void ToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                 uint64_t size, TF_Status* status) {
  ToDevice(device, nullptr, to, from, size, status);
}

// Filling memory.

void Fill(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint8_t value, uint64_t size,
          TF_Status* status) {
  memset(memory->opaque, value, size);
  SetOk(status);
}

void FillWithZeros(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* memory,
                   uint64_t size, TF_Status* status) {
  Fill(device, stream, memory, 0, size, status);
}

void FillWithWords(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint32_t value,
                   uint64_t size, TF_Status* status) {
  std::fill_n(static_cast<uint32_t*>(memory->opaque), size / sizeof(value), value);
  SetOk(status);
}

}  // namespace

void SetCopyFunctions(SP_StreamExecutor* executor) {
  executor->memcpy_htod = FromHost;
  executor->memcpy_dtoh = ToHost;
  executor->memcpy_dtod = ToDevice;
  executor->sync_memcpy_htod = FromHostNow;
  executor->sync_memcpy_dtoh = ToHostNow;
  executor->sync_memcpy_dtod = ToDeviceNow;
  executor->memset = Fill;
  executor->mem_zero = FillWithZeros;
  executor->memset32 = FillWithWords;
}

}  // namespace simgpu
