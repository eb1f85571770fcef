//! Words and commands that several checks name.

/// The command that sets parameters of the kernel, and how they outlast a reboot.
pub(crate) fn sysctl(parameters: &str) -> String {
    format!("sysctl -w {parameters}   # for ever: a file in /etc/sysctl.d")
}

/// The command that sets an interface's MTU, what else it takes, and how the MTU outlasts a reboot.
pub(crate) fn set_mtu(netdev: &str, mtu: u32, and: &str) -> String {
    format!(
        "ip link set {netdev} mtu {mtu}   # {and}; for ever: nmcli connection modify CONNECTION \
         802-3-ethernet.mtu {mtu}, or `mtu: {mtu}` in /etc/netplan"
    )
}

/// The first of several names, and how many others there are.
pub(crate) fn and_others(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [name] => name.clone(),
        [name, others @ ..] => format!("{name} and {} more", others.len()),
    }
}
