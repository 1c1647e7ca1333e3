#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "machine.h"

namespace simgpu {
namespace {

constexpr int64_t kMiB = 1 << 20;

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = nullptr;
  memory->size = 0;
  Guard guard(TheMachine().lock);
  Device& self = DeviceOf(device);
  void* place = MAP_FAILED;
  if (self.reserved + static_cast<int64_t>(size) <= self.memory_limit) {
    // Pages come into being when they are written to, so four large devices fit a small host.
    place = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (place == MAP_FAILED) {
    ++self.counters.failed_allocations;
    return;
  }
  self.regions[static_cast<char*>(place)] = size;
  self.reserved += size;
  self.peak_reserved = std::max(self.peak_reserved, self.reserved);
  memory->opaque = place;
  memory->size = size;
}

void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  Guard guard(TheMachine().lock);
  Device& self = DeviceOf(device);
  auto region = self.regions.find(static_cast<char*>(memory->opaque));
  if (region == self.regions.end()) return;
  munmap(memory->opaque, region->second);
  self.reserved -= region->second;
  self.regions.erase(region);
}

void* AllocateOnHost(const SP_Device*, uint64_t size) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}

void DeallocateOnHost(const SP_Device*, void* memory) { free(memory); }

TF_Bool Statistics(const SP_Device* device, SP_AllocatorStats* statistics) {
  Guard guard(TheMachine().lock);
  const Device& self = DeviceOf(device);
  statistics->struct_size = SP_ALLOCATORSTATS_STRUCT_SIZE;
  statistics->bytes_in_use = self.reserved;
  statistics->peak_bytes_in_use = self.peak_reserved;
  statistics->has_bytes_limit = 1;
  statistics->bytes_limit = self.memory_limit;
  return 1;
}

// TensorFlow leaves a part of the memory reported here to others: 255 MiB of less than 2 GiB, else
// 6 percent, but at least 300 MiB. It is added, so that the limit is what tensors may fill.
int64_t WithReserve(int64_t limit) {
  if (limit <= 255 * kMiB) return limit;
  if (limit + 255 * kMiB < 2048 * kMiB) return limit + 255 * kMiB;
  return std::max(limit + 300 * kMiB, static_cast<int64_t>(limit / 0.94));
}

TF_Bool Usage(const SP_Device* device, int64_t* free, int64_t* total) {
  Guard guard(TheMachine().lock);
  *free = *total = WithReserve(DeviceOf(device).memory_limit);
  return 1;
}

}  // namespace

void SetMemoryFunctions(SP_StreamExecutor* executor) {
  executor->allocate = Allocate;
  executor->deallocate = Deallocate;
  executor->host_memory_allocate = AllocateOnHost;
  executor->host_memory_deallocate = DeallocateOnHost;
  executor->get_allocator_stats = Statistics;
  executor->device_memory_usage = Usage;
}

}  // namespace simgpu
