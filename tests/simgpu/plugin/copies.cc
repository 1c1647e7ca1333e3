#include "copies.h"

#include <algorithm>
#include <cstring>

#include "machine.h"
#include "streams.h"

namespace simgpu {
namespace {

// Keeps account of a copy. It takes the link's latency and its bytes at the link's bandwidth; for
// the latter no other copy has the link. Without a stream, the host waits for it.
class Copy {
 public:
  Copy(const SP_Device* device, SP_Stream stream, int from, int to, uint64_t size)
      : device_(DeviceOf(device)), stream_(stream), from_(from), to_(to), size_(size) {}

  void KeepAccount() const {
    Moment moment;
    {
      Machine& machine = TheMachine();
      Guard guard(machine.lock);
      TrafficOf(machine).Add(size_);
      const Nanos now = Now();
      const Span span = Take(machine, now);
      moment.time = span.end;
      machine.records.Add(Record{.device = device_.index,
                                 .stream = stream_ != nullptr ? stream_->number : 0,
                                 .from = from_,
                                 .to = to_,
                                 .num_bytes = static_cast<int64_t>(size_),
                                 .enqueued = now,
                                 .begin = span.begin,
                                 .end = span.end});
    }
    if (stream_ == nullptr) moment.Wait();
  }

 private:
  // Counted where the bytes come from, whichever device's stream moves them.
  Traffic& TrafficOf(Machine& machine) const {
    if (from_ == kHost) return device_.counters.from_host;
    Counters& source = machine.devices[from_]->counters;
    return to_ == kHost ? source.to_host : source.to_device[to_];
  }

  Span Take(Machine& machine, Nanos now) const {
    const Cost& cost = machine.cost;
    const bool has_host = from_ == kHost || to_ == kHost;
    Nanos moving, latency;
    if (from_ == to_) {  // Within a device: read and written.
      moving = static_cast<Nanos>(cost.InMemory(2.0 * size_) * device_.slowdown);
      latency = 0;
    } else {
      moving = cost.Scaled(Seconds(size_, has_host ? cost.host_bandwidth : cost.peer_bandwidth));
      latency = cost.Scaled(has_host ? cost.host_latency : cost.peer_latency);
    }
    Nanos& link = machine.links[{from_, to_}];
    const Nanos ready = from_ == to_ ? now : std::max(now, link);
    Span span{ready, ready + latency + moving};
    if (stream_ != nullptr) span = Occupy(stream_, ready, latency + moving);
    link = span.begin + moving;
    return span;
  }

  Device& device_;
  SP_Stream stream_;
  int from_, to_;
  uint64_t size_;
};

int OwnerOf(const void* address) {
  Machine& machine = TheMachine();
  Guard guard(machine.lock);
  return machine.OwnerOf(address);
}

// On a stream, or while the host waits.

void FromHost(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
              uint64_t size, TF_Status* status) {
  memcpy(to->opaque, from, size);
  Copy(device, stream, kHost, DeviceOf(device).index, size).KeepAccount();
  SetOk(status);
}

void ToHost(const SP_Device* device, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
            uint64_t size, TF_Status* status) {
  memcpy(to, from->opaque, size);
  Copy(device, stream, DeviceOf(device).index, kHost, size).KeepAccount();
  SetOk(status);
}

void ToDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
              const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  memcpy(to->opaque, from->opaque, size);
  Copy(device, stream, OwnerOf(from->opaque), OwnerOf(to->opaque), size).KeepAccount();
  SetOk(status);
}

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

void KeepAccountOfFilling(SP_Stream stream, uint64_t size) {
  Machine& machine = TheMachine();
  Guard guard(machine.lock);
  Occupy(stream, Now(), static_cast<Nanos>(machine.cost.InMemory(size) * stream->device->slowdown));
}

void Fill(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t value,
          uint64_t size, TF_Status* status) {
  memset(memory->opaque, value, size);
  KeepAccountOfFilling(stream, size);
  SetOk(status);
}

void FillWithZeros(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* memory,
                   uint64_t size, TF_Status* status) {
  Fill(device, stream, memory, 0, size, status);
}

void FillWithWords(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint32_t value,
                   uint64_t size, TF_Status* status) {
  std::fill_n(static_cast<uint32_t*>(memory->opaque), size / sizeof(value), value);
  KeepAccountOfFilling(stream, size);
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
