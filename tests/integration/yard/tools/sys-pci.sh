#!/bin/bash
# Shows the veth ports as PCI functions of a ConnectX-7 too, by which the doctor finds them. `sys-pci.sh off` takes it back.
set -eu
if [ "${1:-}" = off ]; then
  umount /sys/bus
  exit
fi
mkdir -p /run/yard/bus-{upper,work}
mount -t overlay overlay -o lowerdir=/sys/bus,upperdir=/run/yard/bus-upper,workdir=/run/yard/bus-work /sys/bus
port=0
for interface in enp1s0f0np0 enp1s0f1np1; do
  [ -e "/sys/class/net/$interface" ] || continue
  pci="/sys/bus/pci/devices/0000:01:00.$port"
  mkdir -p "$pci/net/$interface" "$pci/infiniband/rocep1s0f$port"
  echo 0x15b3 >"$pci/vendor"
  echo 0x1021 >"$pci/device"
  for limit in current max; do
    echo "32.0 GT/s PCIe" >"$pci/${limit}_link_speed"
    echo 4 >"$pci/${limit}_link_width"
  done
  port=$((port + 1))
done
