/* A stand-in for NVIDIA's driver library: four GPUs and what lies between them.
   Types and constants are those of NVML's ABI. */

#include <string.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;

enum { SUCCESS = 0, NOT_FOUND = 6 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, CAPS_WRITE = 1, CAPS_NVLINK = 2 };
enum { TOPOLOGY_HOSTBRIDGE = 30, TOPOLOGY_SYSTEM = 50 };

static const char *const buses[] = {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:81:00.0"};

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t result) { return "stand-in"; }

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
  for (long index = 0; index < 4; index++)
    if (strcmp(bus, buses[index]) == 0) {
      *device = (nvmlDevice_t)(index + 1);
      return SUCCESS;
    }
  return NOT_FOUND;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  strncpy(version, "570.86.10", length);
  return SUCCESS;
}

/* Only the first two are joined by NVLink. The last one cannot be reached by the others. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, int caps, int *status) {
  int has_nvlink = (long)one + (long)other == 3;
  int is_near = (long)one != 4 && (long)other != 4;
  int is_possible = caps == CAPS_NVLINK ? has_nvlink : caps == CAPS_WRITE && is_near;
  *status = is_possible ? P2P_OK : P2P_NOT_SUPPORTED;
  return SUCCESS;
}

/* The last one hangs on another processor. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, int *level) {
  *level = (long)one == 4 || (long)other == 4 ? TOPOLOGY_SYSTEM : TOPOLOGY_HOSTBRIDGE;
  return SUCCESS;
}
