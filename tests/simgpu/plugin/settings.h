// What the environment says about the machine to simulate.
#ifndef SIMGPU_SETTINGS_H_
#define SIMGPU_SETTINGS_H_

#include <cstdint>
#include <string>

namespace simgpu {

int NumDevices();                       // SIMGPU_COUNT
int64_t MemoryOfDevice(int index);      // SIMGPU_MEMORY_MB: "2048", or one per device "1000,64"
bool GrowsMemory();                     // SIMGPU_GROWTH: "0" reserves all memory at the start
std::string PathOfKernelList();         // SIMGPU_KERNELS

}  // namespace simgpu

#endif
