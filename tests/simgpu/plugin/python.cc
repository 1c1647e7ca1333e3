// What `simgpu.py` calls.
#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>

#include "exported.h"
#include "machine.h"

namespace simgpu {
namespace {

std::string Quoted(const std::string& text) {
  std::ostringstream quoted;
  quoted << std::quoted(text);
  return quoted.str();
}

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

std::string ShowCount(const KernelCount& count) {
  return "[" + Text(count.num_kernels) + "," + std::to_string(count.busy * 1e-3) + "]";
}

std::string ShowDevice(const Device& device) {
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
      {"kernels", Object(counters.kernels, ShowCount)},
      {"launches", Text(counters.launches)},
      {"misplaced", Object(counters.misplaced, Text)},
  };
  return Object(parts, [](const std::string& value) { return value; });
}

std::string ShowRecord(const Record& record) {
  std::ostringstream text;
  text << "[" << record.device << "," << record.stream << "," << record.enqueued << ","
       << record.begin << "," << record.end;
  if (record.name != nullptr) {
    text << "," << Quoted(record.name->node) << "," << Quoted(record.name->type);
  } else {
    text << "," << record.from << "," << record.to << "," << record.num_bytes;
  }
  return text.str() + "]";
}

template <typename Items, typename Show>
std::string List(const Items& items, Show show) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ",";
    text += show(item);
  }
  return text + "]";
}

// Writes a text, if it fits; returns the bytes that it needs.
size_t Write(const std::string& text, char* buffer, size_t size) {
  if (text.size() < size) memcpy(buffer, text.c_str(), text.size() + 1);
  return text.size() + 1;
}

}  // namespace
}  // namespace simgpu

using simgpu::Guard;
using simgpu::TheMachine;

EXPORTED size_t simgpu_stats(char* buffer, size_t size) {
  Guard guard(TheMachine().lock);
  auto show = [](const auto& device) { return simgpu::ShowDevice(*device); };
  return simgpu::Write(simgpu::List(TheMachine().devices, show), buffer, size);
}

EXPORTED size_t simgpu_records(char* buffer, size_t size) {
  Guard guard(TheMachine().lock);
  return simgpu::Write(simgpu::List(TheMachine().records.latest(), simgpu::ShowRecord), buffer,
                       size);
}

EXPORTED void simgpu_reset() {
  Guard guard(TheMachine().lock);
  for (const auto& device : TheMachine().devices) device->counters = simgpu::Counters();
  TheMachine().records.Clear();
}

// Returns the limit until now.
EXPORTED int64_t simgpu_set_memory_limit(int index, int64_t limit) {
  Guard guard(TheMachine().lock);
  return std::exchange(TheMachine().devices.at(index)->memory_limit, limit);
}

EXPORTED void simgpu_set_cost(const simgpu::Cost* cost) {
  Guard guard(TheMachine().lock);
  TheMachine().cost = *cost;
  TheMachine().takes_time = !cost->IsFree();
}

// Returns the factor until now.
EXPORTED double simgpu_slow_down(int index, double factor) {
  Guard guard(TheMachine().lock);
  return std::exchange(TheMachine().devices.at(index)->slowdown, factor);
}
