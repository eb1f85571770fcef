//! Network interfaces: lists them and chooses which to use.

mod find;
mod resolve;

pub use find::{Found, NoInterface, Rules, find};
pub use resolve::{check_host_port, resolve};

use std::ffi::{CStr, CString, c_int};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::{fs, io, mem, ptr};

use invar_core::nic::Mtu;
use invar_core::param::AddressFamily;
use invar_core::roce::qp::LONG_MTU_BYTES_MAX;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type, socklen_t};

use crate::udp::TRAIN_BYTES_MAX;

/// Maximum bytes that RoCEv2 adds around the payload of a packet, as Linux counts (`iboe_get_mtu`): IPv6
/// 40, UDP 8, BTH 12, extended headers 4 + 28, ICRC 4.
const ROCE_OVERHEAD_BYTES: u32 = 96;

/// Maximum bytes that Invar's packets have behind the IP header, besides the payload: UDP 8, BTH 12,
/// RETH 16, ImmDt 4, tag 16.
const LONG_OVERHEAD_BYTES: u32 = 56;
const IPV4_BYTES: u32 = 20;
const IPV6_BYTES: u32 = 40;

/// Bytes that a UDP socket sends around the payload of a packet in the middle of a message: BTH 12, tag
/// 16.
const MIDDLE_OVERHEAD_BYTES: u32 = 28;

/// A network interface of this host, in this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface; the alias (`eth0:1`) if an address has one.
    pub name: String,
    /// Index of the interface, which scopes link-local addresses.
    pub index: u32,
    /// Whether the interface is up and has a link.
    pub up: bool,
    /// Whether no packet on the interface leaves the host.
    pub loopback: bool,
    /// Maximum length of an IP packet in bytes.
    pub mtu: u32,
    /// Addresses of the interface: IPv4, then IPv6, link-local ones last.
    pub addresses: Vec<InterfaceAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The IP address, without the subnet.
    pub ip: IpAddr,
    /// Number of bits in the subnet prefix.
    pub prefix_len: u8,
    /// Index of the interface for a link-local address; 0 for other addresses.
    pub scope_id: u32,
}

impl Interface {
    /// Lists all interfaces in the kernel's order.
    pub fn list() -> io::Result<Vec<Interface>> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)
            .or_else(|_| Socket::new(Domain::IPV6, Type::DGRAM, None))?;
        let mut interfaces: Vec<Interface> = Vec::new();
        for entry in entries()? {
            let at = match interfaces.iter().position(|known| known.name == entry.name) {
                Some(at) => at,
                // An interface that vanished meanwhile has no MTU.
                None => match describe(&socket, &entry) {
                    Some(interface) => {
                        interfaces.push(interface);
                        interfaces.len() - 1
                    }
                    None => continue,
                },
            };
            interfaces[at].addresses.extend(entry.address);
        }
        for interface in &mut interfaces {
            interface.addresses.sort_by_key(|addr| (addr.ip.is_ipv6(), addr.scope_id != 0));
        }
        Ok(interfaces)
    }

    /// Returns the interface that has `ip`; a loopback interface has all addresses of its subnet.
    pub fn holding(ip: IpAddr) -> io::Result<Option<Interface>> {
        Ok(Self::list()?.into_iter().find(|interface| interface.holds(ip)))
    }

    /// Whether the interface has `ip`; a loopback interface has all addresses of its subnet.
    pub fn holds(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|addr| addr.ip == ip || self.loopback && addr.shares_subnet(ip))
    }

    /// Returns the address to use, with port 0. Returns `None` if the interface is down or has no
    /// address of that family.
    pub fn addr(&self, family: AddressFamily) -> Option<SocketAddr> {
        let mut addresses = self.addresses.iter().filter(|_| self.up);
        addresses.find(|addr| addr.is_of(family)).map(InterfaceAddress::socket_addr)
    }

    /// Returns the address of a peer as this interface reaches it. A link-local address is on this interface's
    /// link, whatever number that link has on the peer's host.
    pub fn on_its_link(&self, mut peer: SocketAddr) -> SocketAddr {
        if has_scope(peer)
            && let SocketAddr::V6(v6) = &mut peer
        {
            v6.set_scope_id(self.index);
        }
        peer
    }

    /// Returns the interface's directory in `sysfs`, usually `/sys`.
    pub fn directory(&self, sysfs: &Path) -> PathBuf {
        // An alias (`eth0:1`) has no device of its own.
        let name = self.name.split(':').next().unwrap_or_default();
        sysfs.join("class/net").join(name)
    }

    /// Returns the link speed in megabits per second, if the driver reports it; see
    /// [`Interface::directory`].
    pub fn speed_mbps(&self, sysfs: &Path) -> Option<u32> {
        let text = fs::read_to_string(self.directory(sysfs).join("speed")).ok()?;
        // Drivers without a known speed report -1, or an error on reading.
        text.trim().parse().ok().filter(|speed| *speed > 0)
    }

    /// Returns the largest RoCE path MTU whose packets fit, or `None` if not even the smallest fits.
    pub fn path_mtu(&self) -> Option<Mtu> {
        Mtu::fitting(self.mtu.saturating_sub(ROCE_OVERHEAD_BYTES))
    }

    /// Returns the payload length that software NICs at this address and another agree on. The length is
    /// a multiple of the cache line: the largest that fits, or less if that would leave a sixteenth of a
    /// train empty. Returns 0 if the result does not exceed the path MTU.
    pub fn long_mtu_bytes(&self, address: IpAddr) -> u32 {
        let ip_bytes = if address.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        let overhead = ip_bytes + LONG_OVERHEAD_BYTES;
        let fit = self.mtu.saturating_sub(overhead).min(LONG_MTU_BYTES_MAX) / 64 * 64;
        let train = TRAIN_BYTES_MAX as u32;
        let packets = train / (fit + MIDDLE_OVERHEAD_BYTES);
        let long = if packets * fit >= train / 16 * 15 {
            fit
        } else {
            (train / (packets + 1)).saturating_sub(MIDDLE_OVERHEAD_BYTES) / 64 * 64
        };
        let path_mtu = self.path_mtu().map_or(u32::MAX, Mtu::bytes);
        if long > path_mtu { long } else { 0 }
    }
}

impl InterfaceAddress {
    /// Returns the address as a socket address with port 0.
    pub fn socket_addr(&self) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, 0),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, self.scope_id).into(),
        }
    }

    fn is_of(&self, family: AddressFamily) -> bool {
        family.takes(self.ip)
    }

    /// Whether `other` is in the same subnet, judged by the prefix bits.
    pub fn shares_subnet(&self, other: IpAddr) -> bool {
        let differing = match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
            (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
            _ => return false,
        };
        differing.leading_zeros() >= u32::from(self.prefix_len)
    }
}

fn describe(socket: &Socket, entry: &Entry) -> Option<Interface> {
    let flag = |flag: c_int| entry.flags & flag as u32 != 0;
    let name = CString::new(entry.name.as_str()).ok()?;
    // SAFETY: The string ends in NUL.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    Some(Interface {
        index,
        up: flag(libc::IFF_UP) && flag(libc::IFF_RUNNING),
        loopback: flag(libc::IFF_LOOPBACK),
        mtu: mtu(socket, &name)?,
        addresses: Vec::new(),
        name: entry.name.clone(),
    })
}

/// Returns the MTU. The kernel answers, because sysfs may show another network namespace than ours.
fn mtu(socket: &Socket, name: &CStr) -> Option<u32> {
    // SAFETY: The type consists of integers, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte of the name stays 0.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.to_bytes()) {
        *to = *from as _;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU, both within `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &mut request) };
    // SAFETY: The field is an integer, and any bits are a valid integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    (result == 0).then(|| u32::try_from(mtu).ok())?
}

/// An entry of `getifaddrs(3)`: an address, or a link without one.
struct Entry {
    name: String,
    flags: u32,
    address: Option<InterfaceAddress>,
}

/// Returns the list of `getifaddrs(3)`.
fn entries() -> io::Result<Vec<Entry>> {
    let mut first = ptr::null_mut();
    // SAFETY: On success the call stores a list, which the code below frees.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entries = Vec::new();
    let mut next = first;
    // SAFETY: The pointers that link the list are valid until the list is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: The name is a string that ends in NUL.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        entries.push(Entry {
            name: name.to_string_lossy().into_owned(),
            flags: entry.ifa_flags,
            // SAFETY: Each pointer is null or points to a socket address.
            address: unsafe { address(entry.ifa_addr, entry.ifa_netmask) },
        });
        next = entry.ifa_next;
    }
    // SAFETY: `getifaddrs` returned the list, and no reference into it is left.
    unsafe { libc::freeifaddrs(first) };
    Ok(entries)
}

/// # Safety
///
/// Each is null or points to a socket address of its family's length.
unsafe fn address(
    addr: *const libc::sockaddr,
    mask: *const libc::sockaddr,
) -> Option<InterfaceAddress> {
    // SAFETY: The caller upholds this function's safety contract.
    let (addr, mask) = unsafe { (socket_addr(addr)?, socket_addr(mask)) };
    let prefix_len = match mask.map(|mask| mask.ip()) {
        Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
        Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
        // A point-to-point link has no mask.
        None => {
            if addr.is_ipv4() {
                32
            } else {
                128
            }
        }
    };
    let scope_id = match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    };
    Some(InterfaceAddress { ip: addr.ip(), prefix_len: prefix_len as u8, scope_id })
}

/// Converts a socket address; returns `None` for null and for families other than IP.
///
/// # Safety
///
/// The caller keeps the promises of [`address`].
unsafe fn socket_addr(addr: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: The caller upholds this function's safety contract.
    let len = match c_int::from(unsafe { addr.as_ref() }?.sa_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: An address of this family has `len` bytes, and the storage has room for any address.
    unsafe {
        ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast(), len);
        SockAddr::new(storage, len as socklen_t).as_socket()
    }
}

/// Whether an address names a host only together with the number of its link. IPv4 has no such number.
pub fn has_scope(addr: SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local())
}

/// Whether an address names a host only together with a link.
pub fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether an end with the address `own` may send to `place` for a peer whose TCP connection comes from `peer`. A
/// peer on another host reaches no service of this host that way. The interfaces are those of the calling thread's
/// network namespace.
pub fn may_lead_to(place: IpAddr, peer: IpAddr, own: IpAddr) -> bool {
    let [place, peer, own] = [place, peer, own].map(|ip| ip.to_canonical());
    let has = |ip: IpAddr| ip == own || !matches!(Interface::holding(ip), Ok(None));
    let is_here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified() || has(ip);
    place == peer || !is_here(place) || is_here(peer)
}

/// Returns a number for the network namespace of the calling thread; 0 if there is no `/proc`.
pub fn namespace() -> u64 {
    rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |stat| stat.st_ino)
}

#[cfg(test)]
mod tests;
