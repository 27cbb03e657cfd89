#!/bin/bash
# Shows the veth ports as ConnectX-7 ports in /sys, through an overlay: everything else of /sys stays live.
# Values: two ports of 200 Gb/s, RoCE v2, as a healthy DGX Spark shows them.
set -eu
mkdir -p /run/yard/{class,net}-{upper,work}
mount -t overlay overlay -o lowerdir=/sys/class,upperdir=/run/yard/class-upper,workdir=/run/yard/class-work /sys/class
mount -t overlay overlay -o lowerdir=/sys/devices/virtual/net,upperdir=/run/yard/net-upper,workdir=/run/yard/net-work \
  /sys/devices/virtual/net
port=0
for interface in enp1s0f0np0 enp1s0f1np1; do
  [ -e "/sys/class/net/$interface" ] || continue
  ib="/sys/class/infiniband/rocep1s0f$port/ports/1"
  mkdir -p "$ib"/{counters,hw_counters,gids,gid_attrs/types,gid_attrs/ndevs}
  echo "4: ACTIVE" >"$ib/state"
  echo "5: LinkUp" >"$ib/phys_state"
  echo "200 Gb/sec (4X HDR)" >"$ib/rate"
  echo "Ethernet" >"$ib/link_layer"
  echo "28.45.4028" >"/sys/class/infiniband/rocep1s0f$port/fw_ver"
  address=$(ip -4 -o addr show dev "$interface" | sed -n 's/.* inet \([0-9.]*\).*/\1/p')
  if [ -n "$address" ]; then
    # shellcheck disable=SC2046,SC2183 # four numbers, four words
    printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\n' $(echo "$address" | tr . ' ') >"$ib/gids/3"
    echo "RoCE v2" >"$ib/gid_attrs/types/3"
    echo "$interface" >"$ib/gid_attrs/ndevs/3"
  fi
  for counter in port_rcv_data port_xmit_data symbol_error link_downed; do echo 0 >"$ib/counters/$counter"; done
  echo 200000 >"/sys/class/net/$interface/speed"
  port=$((port + 1))
done
