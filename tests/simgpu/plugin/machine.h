// The simulated machine: its GPUs, what they hold, and what they have done so far.
//
// One lock guards all of it. What happens under it is a little arithmetic, never a computation.
#ifndef SIMGPU_MACHINE_H_
#define SIMGPU_MACHINE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cost.h"
#include "records.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace simgpu {

// Copies in one direction.
struct Traffic {
  int64_t num_copies = 0;
  int64_t num_bytes = 0;
  std::map<int64_t, int64_t> sizes;  // Bytes of a copy, and how many there were of that size.

  void Add(int64_t size) {
    ++num_copies;
    num_bytes += size;
    ++sizes[size];
  }
};

// Kernels of one type of op.
struct KernelCount {
  int64_t num_kernels = 0;
  Nanos busy = 0;
};

// What a GPU has done since the last reset.
struct Counters {
  Traffic from_host, to_host;
  std::map<int, Traffic> to_device;  // By index; the own index is a copy within the device.
  std::map<std::string, KernelCount> kernels;  // By type of op.
  std::map<std::string, int64_t> misplaced;  // Inputs that lay in the wrong memory.
  int64_t launches = 0;  // Of kernels that have something to do on the device.
  int64_t host_waits = 0, events = 0, failed_allocations = 0;
};

struct Device {
  int index = 0;
  std::string bus_id;
  int64_t memory_limit = 0;
  int64_t reserved = 0, peak_reserved = 0;
  std::map<const char*, uint64_t> regions;  // Memory that TensorFlow has reserved, by address.
  std::set<SP_Stream> streams;
  int num_streams_created = 0;
  double slowdown = 1;
  Counters counters;
};

struct Machine {
  std::mutex lock;
  std::vector<std::unique_ptr<Device>> devices;
  Cost cost;
  std::atomic<bool> takes_time{false};  // Whether the cost is above zero; can be read without lock.
  // When the way from one device, or the host, to another is free. Each direction is a way.
  std::map<std::pair<int, int>, Nanos> links;
  Records records;

  // The device whose memory an address lies in, or -1 for the host's. Needs the lock.
  int OwnerOf(const void* address) const;
};

// Never destroyed: TensorFlow's threads may outlive this library's globals.
Machine& TheMachine();

using Guard = std::lock_guard<std::mutex>;

inline Device& DeviceOf(const SP_Device* device) {
  return *static_cast<Device*>(device->device_handle);
}

inline void SetOk(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

}  // namespace simgpu

#endif
