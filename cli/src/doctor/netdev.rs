//! Network interfaces that do not lead straight to other hosts, by their names.

/// The beginnings of names that container engines, hypervisors and network plugins give to interfaces. Such an
/// interface leads to guests and services of this host only.
const OF_GUESTS: [&str; 16] = [
    "docker",
    "podman",
    "nerdctl",
    "cni",
    "cbr",
    "veth",
    "vnet",
    "virbr",
    "lxc",
    "lxd",
    "cali",
    "cilium_host",
    "cilium_net",
    "kube",
    "nodelocaldns",
    "ifb",
];

/// The beginnings of names that network plugins and VPNs give to their tunnels to other hosts.
const TUNNELS: [&str; 15] = [
    "flannel",
    "vxlan",
    "tun",
    "cilium_vxlan",
    "cilium_geneve",
    "cilium_wg",
    "ovn-k8s",
    "genev",
    "weave",
    "antrea",
    "wireguard",
    "wg",
    "tailscale",
    "nebula",
    "zt",
];

/// Whether the interface leads to guests of this host only.
pub(crate) fn is_of_guests(name: &str) -> bool {
    OF_GUESTS.iter().any(|prefix| name.starts_with(prefix)) || is_of_docker(name)
}

/// Whether the interface leads into a tunnel, which wraps each packet in another one.
pub(crate) fn is_tunnel(name: &str) -> bool {
    TUNNELS.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether this is a bridge that Docker or nerdctl made for a network: `br-` and 12 hexadecimal digits. Other
/// bridges `br-…` may have the host's own address.
fn is_of_docker(name: &str) -> bool {
    let id = name.strip_prefix("br-");
    id.is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_guests_tunnels_and_cards_are_told_apart() {
        let guests = "docker0 virbr0 veth1a2b cni0 cni-podman0 podman1 nerdctl0 lxc9f cali12 cilium_host \
                      cilium_net kube-ipvs0 nodelocaldns br-0123456789ab";
        let tunnels =
            "vxlan.calico tunl0 tun0 cilium_vxlan cilium_wg0 ovn-k8s-mp0 tailscale0 wg0 flannel.1";
        let others = "eth0 enp3s0f0np0 ens1 eno1 ib0 ibp1 roce0 bond0 br-lan";
        for (names, expected) in
            [(guests, (true, false)), (tunnels, (false, true)), (others, (false, false))]
        {
            for name in names.split_whitespace() {
                assert_eq!((is_of_guests(name), is_tunnel(name)), expected, "{name}");
            }
        }
    }
}
