//! The sending socket.

use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{SockAddr, Socket};

use super::{Control, DATAGRAM_BYTES_MAX, bind, grow_buffer, message_header, set_option};
use crate::fork::NotInherited;
use crate::memory::Gather;

/// Maximum number of datagrams in a train (`UDP_MAX_SEGMENTS` of kernels before 6.9; later ones take
/// 128).
pub const SEGMENTS_MAX: usize = 64;

/// Maximum number of gather list pieces that one datagram may span.
pub const PIECES_MAX: usize = 8;

/// Source ports: those of RoCE packets (Linux `IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`) that are below the ports at
/// which software NICs share an address. Source ports among those would leave fewer NICs a port.
pub(crate) const SOURCE_PORTS: RangeInclusive<u16> = 0xc000..=60_999;

/// A socket that sends packets as a RoCE device would. Any thread may use it.
///
/// The socket never fragments datagrams (`IP_MTU_DISCOVER` is `DO`). Therefore the IPv4 identification
/// is predictable while the socket expects no peer; see [`ip_id`](Self::ip_id).
#[derive(Debug)]
pub struct TxSocket {
    pub(super) socket: NotInherited<Socket>,
    ipv6: bool,
    connected: Option<SocketAddr>,
    pub(super) offload: AtomicBool,
}

/// The kernel refused to send datagrams.
#[derive(Debug, thiserror::Error)]
#[error("sending datagrams of {segment_bytes} bytes to {to}: {source}{}", hint(self))]
pub struct SendError {
    /// Destination of the datagrams.
    pub to: SocketAddr,
    /// Length of each datagram in bytes.
    pub segment_bytes: usize,
    /// The kernel's error.
    pub source: io::Error,
}

impl SendError {
    /// Returns the reason, if more is known than the text of the error says.
    pub fn reason(&self) -> Option<&'static str> {
        match self.source.raw_os_error()? {
            libc::EMSGSIZE => Some("the MTU of the interface, or of the path, is smaller"),
            libc::EPERM => Some("a firewall of this host forbids it"),
            libc::ENETUNREACH | libc::EHOSTUNREACH => Some("no route"),
            _ => None,
        }
    }
}

impl TxSocket {
    /// Binds a socket at `local`, the source address of the packets; port 0 means any free port.
    pub fn bind(local: SocketAddr) -> io::Result<Self> {
        let socket = bind_firmly(local)?;
        grow_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
        let (level, discover, mode) = if local.is_ipv6() {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
        };
        set_option(&socket, level, discover, mode)?;
        // Size 0 leaves offload off by default; the call only checks that the kernel supports it.
        let offload = set_option(&socket, libc::IPPROTO_UDP, libc::UDP_SEGMENT, 0).is_ok();
        let offload = AtomicBool::new(offload);
        let (socket, ipv6) = (NotInherited::new(socket), local.is_ipv6());
        Ok(TxSocket { socket, ipv6, connected: None, offload })
    }

    /// Returns the source address of the packets, with its port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = self.socket.local_addr()?;
        Ok(addr.as_socket().expect("bound to an IP address"))
    }

    /// Tells the kernel where most datagrams go. The kernel then looks up the route once instead of once
    /// per train, which saves half a microsecond per train. Datagrams to other addresses go as before.
    /// From now on the kernel counts the IPv4 identification.
    pub fn expect_peer(&mut self, to: SocketAddr) -> io::Result<()> {
        if self.connected != Some(to) {
            self.socket.connect(&to.into())?;
            self.connected = Some(to);
        }
        Ok(())
    }

    /// Makes the IPv4 identification predictable again. Over IPv6, which has no identification, the call
    /// does nothing.
    pub fn expect_any(&mut self) -> io::Result<()> {
        if !self.ipv6 && self.connected.is_some() {
            rustix::net::connect_unspec(&self.socket)?;
            self.connected = None;
        }
        Ok(())
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of later datagrams.
    pub fn set_traffic_class(&self, traffic_class: u8) -> io::Result<()> {
        if self.ipv6 {
            self.socket.set_tclass_v6(traffic_class.into())
        } else {
            self.socket.set_tos_v4(traffic_class.into())
        }
    }

    /// Sets the time to live (IPv4) or hop limit (IPv6) of later datagrams; 0 is invalid.
    pub fn set_hop_limit(&self, hop_limit: u8) -> io::Result<()> {
        if self.ipv6 {
            self.socket.set_unicast_hops_v6(hop_limit.into())
        } else {
            self.socket.set_ttl_v4(hop_limit.into())
        }
    }

    /// Whether the kernel cuts trains (`UDP_SEGMENT`, Linux 4.18). If the kernel turns out not to, this
    /// becomes false for good.
    pub fn offload(&self) -> bool {
        self.offload.load(Ordering::Relaxed)
    }

    /// Returns how many datagrams of `segment_bytes` each fit into one [`send_segments`](
    /// Self::send_segments): at least 1, at most [`SEGMENTS_MAX`].
    pub fn segments_max(segment_bytes: usize) -> usize {
        (DATAGRAM_BYTES_MAX / segment_bytes.max(1)).clamp(1, SEGMENTS_MAX)
    }

    /// Returns the IPv4 identification that datagram `index` of a [`send_segments`](Self::send_segments)
    /// will have, for the ICRC. The identification is the index if the kernel cuts the train, and 0 if
    /// each datagram is sent alone. IPv6 has none. While the socket [expects](Self::expect_peer) a peer,
    /// the identification is unknown.
    ///
    /// If a kernel unexpectedly refuses to cut a train, the socket still sends the datagrams, with
    /// identification 0. To the receiver they are lost. This happens at most once per socket.
    pub fn ip_id(&self, index: usize) -> u16 {
        if self.offload() { index as u16 } else { 0 }
    }

    /// Sends a train to `to`: the bytes of `pieces`, cut into datagrams of `segment_bytes`. The last
    /// datagram may be shorter. A datagram may span up to [`PIECES_MAX`] pieces.
    ///
    /// Returns how many datagrams left, counted from the front. The number is less than the whole, or 0,
    /// if the kernel has no room at present. An error means that none left.
    pub fn send_segments(
        &self,
        to: SocketAddr,
        pieces: &[Gather<'_>],
        segment_bytes: usize,
    ) -> Result<usize, SendError> {
        let name = (self.connected != Some(to)).then(|| to.into());
        self.send_train(name.as_ref(), pieces, segment_bytes).map_err(|source| SendError {
            to,
            segment_bytes,
            source,
        })
    }

    fn send_train(
        &self,
        to: Option<&SockAddr>,
        pieces: &[Gather<'_>],
        segment_bytes: usize,
    ) -> io::Result<usize> {
        let bytes: usize = pieces.iter().map(Gather::len).sum();
        let segments = bytes.div_ceil(segment_bytes.max(1));
        if segments == 0
            || segment_bytes == 0
            || bytes > DATAGRAM_BYTES_MAX
            || segments > SEGMENTS_MAX
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{bytes} bytes are not 1 to {SEGMENTS_MAX} datagrams, {DATAGRAM_BYTES_MAX} \
                     bytes in all"
                ),
            ));
        }
        if segments == 1 {
            return Ok(usize::from(self.send_message(to, pieces, None)?));
        }
        if !self.offload() {
            return self.send_singly(to, pieces, segment_bytes, segments);
        }
        match self.send_message(to, pieces, Some(segment_bytes as u16)) {
            Ok(sent) => Ok(if sent { segments } else { 0 }),
            // The route leads through a device or tunnel without offload. Or the datagrams are too long,
            // which sending them one by one will show.
            Err(refused) if refuses_offload(&refused) => {
                let sent = self.send_singly(to, pieces, segment_bytes, segments)?;
                if sent > 0 {
                    self.offload.store(false, Ordering::Relaxed);
                }
                Ok(sent)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends each datagram by its own system call.
    fn send_singly(
        &self,
        to: Option<&SockAddr>,
        mut pieces: &[Gather<'_>],
        segment_bytes: usize,
        segments: usize,
    ) -> io::Result<usize> {
        let (mut used, mut sent) = (0, 0);
        while sent < segments {
            let mut datagram = [Gather::bytes(&[]); PIECES_MAX];
            let (mut len, mut room) = (0, segment_bytes);
            while let Some((piece, later)) = pieces.split_first()
                && room > 0
            {
                let part = piece.part(used..used.saturating_add(room));
                *datagram.get_mut(len).ok_or_else(too_many_pieces)? = part;
                len += 1;
                room -= part.len();
                used += part.len();
                if used == piece.len() {
                    (pieces, used) = (later, 0);
                }
            }
            match self.send_message(to, &datagram[..len], None) {
                Ok(true) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                // A permanent error comes back with the next call.
                Ok(false) | Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Makes one `sendmsg(2)`, without an address if the socket is connected. Returns whether the kernel
    /// had room.
    fn send_message(
        &self,
        to: Option<&SockAddr>,
        pieces: &[Gather<'_>],
        segment_bytes: Option<u16>,
    ) -> io::Result<bool> {
        let control = segment_bytes
            .map(|bytes| Control::<u16>::new(libc::IPPROTO_UDP, libc::UDP_SEGMENT, bytes));
        // `Gather` is a transparent `iovec`, and the kernel writes to neither the list nor the name.
        let mut header = message_header(
            to.map_or(ptr::null_mut(), |to| to.as_ptr().cast_mut().cast()),
            to.map_or(0, SockAddr::len),
            pieces.as_ptr().cast_mut().cast(),
            pieces.len(),
        );
        if let Some(control) = &control {
            header.msg_control = (&raw const *control).cast_mut().cast();
            header.msg_controllen = size_of_val(control) as _;
        }
        for is_first in [true, false] {
            // SAFETY: Name, gather list and control message have the lengths in the header and outlive
            // the call. The call borrows the memory of the pieces.
            let sent =
                unsafe { libc::sendmsg(self.socket.as_raw_fd(), &header, libc::MSG_DONTWAIT) };
            if sent >= 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => return Ok(false),
                // This is an ICMP answer to an earlier datagram, perhaps from another peer. Reading the
                // error has cleared it.
                Some(libc::ECONNREFUSED) => {}
                // This is perhaps such an answer too. If the kernel refuses these datagrams, it does so again.
                Some(errno) if is_first && may_be_icmp_answer(errno) => {}
                _ => return Err(error),
            }
        }
        // The expected peer refuses every datagram. The datagrams are lost, and the protocol counts its
        // retries.
        Ok(true)
    }
}

/// Makes a socket at an explicit port. The kernel takes back a port that it picked itself when the
/// socket stops expecting a peer (`udp_disconnect`).
fn bind_firmly(mut local: SocketAddr) -> io::Result<Socket> {
    if local.port() != 0 {
        return bind(local);
    }
    let start = RandomState::new().hash_one(local) as usize % SOURCE_PORTS.len();
    for port in SOURCE_PORTS.skip(start).chain(SOURCE_PORTS.take(start)) {
        local.set_port(port);
        match bind(local) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Whether the kernel also reports an ICMP answer to an earlier datagram by this error (Linux
/// `icmp_err_convert` and `icmpv6_err_convert`).
fn may_be_icmp_answer(errno: c_int) -> bool {
    matches!(
        errno,
        libc::EMSGSIZE
            | libc::ENOPROTOOPT
            | libc::EOPNOTSUPP
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EACCES
            | libc::EPROTO
    )
}

fn refuses_offload(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
    )
}

fn too_many_pieces() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("a datagram is spread over more than {PIECES_MAX} pieces"),
    )
}

fn hint(error: &SendError) -> String {
    error.reason().map(|reason| format!(": {reason}")).unwrap_or_default()
}
