// What `simgpu.py` calls.
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "exported.h"
#include "machine.h"

namespace simgpu {
namespace {

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

std::string Text(int64_t number) { return std::to_string(number); }

// A map, as JSON.
template <typename Map, typename Show>
std::string Object(const Map& map, Show show) {
  std::ostringstream text;
  const char* separator = "";
  for (const auto& [key, value] : map) {
    std::ostringstream name;
    name << key;
    text << separator << Quoted(name.str()) << ":" << show(value);
    separator = ",";
  }
  return "{" + text.str() + "}";
}

std::string ShowTraffic(const Traffic& traffic) {
  return "{\"n\":" + Text(traffic.num_copies) + ",\"bytes\":" + Text(traffic.num_bytes) +
         ",\"sizes\":" + Object(traffic.sizes, Text) + "}";
}

std::string ShowLaunches(const Launches& launches) {
  return "[" + Text(launches.num_kernels) + "," + std::to_string(launches.nanos * 1e-3) + "]";
}

std::string Show(const Device& device) {
  const Counters& counters = device.counters;
  std::map<std::string, std::string> parts = {
      {"device", Text(device.index)},
      {"limit", Text(device.memory_limit)},
      {"reserved", Text(device.reserved)},
      {"failed", Text(counters.failed_allocations)},
      {"host_syncs", Text(counters.host_waits)},
      {"events", Text(counters.events)},
      {"h2d", ShowTraffic(counters.from_host)},
      {"d2h", ShowTraffic(counters.to_host)},
      {"d2d", Object(counters.to_device, ShowTraffic)},
      {"kernels", Object(counters.kernels, ShowLaunches)},
      {"misplaced", Object(counters.misplaced, Text)},
  };
  return Object(parts, [](const std::string& value) { return value; });
}

}  // namespace
}  // namespace simgpu

// Writes the state of all devices as JSON, if it fits; returns the bytes that it needs.
EXPORTED size_t simgpu_stats(char* buffer, size_t size) {
  simgpu::Machine& machine = simgpu::TheMachine();
  std::string text;
  {
    simgpu::Guard guard(machine.lock);
    for (const auto& device : machine.devices) {
      text += (text.empty() ? "[" : ",") + simgpu::Show(*device);
    }
  }
  text = text.empty() ? "[]" : text + "]";
  if (text.size() < size) memcpy(buffer, text.c_str(), text.size() + 1);
  return text.size() + 1;
}

EXPORTED void simgpu_reset() {
  simgpu::Machine& machine = simgpu::TheMachine();
  simgpu::Guard guard(machine.lock);
  for (const auto& device : machine.devices) device->counters = simgpu::Counters();
}

// Returns the limit until now.
EXPORTED int64_t simgpu_set_memory_limit(int index, int64_t limit) {
  simgpu::Machine& machine = simgpu::TheMachine();
  simgpu::Guard guard(machine.lock);
  return std::exchange(machine.devices.at(index)->memory_limit, limit);
}
