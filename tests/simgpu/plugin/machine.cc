#include "machine.h"

namespace simgpu {

Machine& TheMachine() {
  static Machine* machine = new Machine;
  return *machine;
}

int Machine::OwnerOf(const void* address) const {
  const char* place = static_cast<const char*>(address);
  for (const auto& device : devices) {
    auto region = device->regions.upper_bound(place);
    if (region == device->regions.begin()) continue;
    --region;
    if (place < region->first + region->second) return device->index;
  }
  return -1;
}

}  // namespace simgpu
