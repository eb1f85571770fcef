//! The receiving socket.

use std::ffi::c_int;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use socket2::Socket;

use crate::fork::NotInherited;

use super::{Control, UDP_NO_CHECK6_RX, bind, grow_buffer, message_header, set_option};

/// Maximum number of trains that one system call receives.
const MESSAGES_MAX: usize = 16;

/// Maximum number of sockets that wait together with another one.
pub const OTHERS_MAX: usize = 15;

/// Length of a buffer that holds the longest train.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// The receiving socket of a software NIC. Any thread may use it.
#[derive(Debug)]
pub struct RxSocket {
    socket: NotInherited<Socket>,
    wake: OwnedFd,
    offload: bool,
}

impl RxSocket {
    /// Binds at `addr`; for port 0 the kernel picks a port.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = bind(addr)?;
        grow_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        if addr.is_ipv6() {
            set_option(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        let offload = set_option(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1).is_ok();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(RxSocket { socket: NotInherited::new(socket), wake, offload })
    }

    /// Returns the address on which the socket receives, with its port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = self.socket.local_addr()?;
        Ok(addr.as_socket().expect("bound to an IP address"))
    }

    /// Whether the kernel delivers whole trains (`UDP_GRO`, Linux 5.0).
    pub fn offload(&self) -> bool {
        self.offload
    }

    /// Returns the size of the receive buffer that the kernel granted, by the kernel's accounting: a
    /// datagram counts more than its bytes.
    pub fn buffer_bytes(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// Replaces the content of `batch` by the trains that have arrived, oldest first. Returns the number
    /// of trains; 0 if none has arrived.
    ///
    /// The call asks for one train. While it gets as many trains as it asked for, later calls ask for
    /// more. To find out that there is no second train takes the kernel as long as the first train.
    pub fn recv_batch(&self, batch: &mut RxBatch) -> io::Result<usize> {
        let wanted = batch.wanted;
        (batch.len, batch.wanted) = (0, 1);
        // This list has room for the longest batch, but most batches are one train.
        let mut headers = heapless::Vec::<libc::mmsghdr, MESSAGES_MAX>::new();
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; MESSAGES_MAX];
        let buffers = batch.bytes.chunks_exact_mut(MESSAGE_BYTES_MAX);
        let slots = batch.messages.iter_mut().zip(buffers).take(wanted);
        for (piece, (message, buffer)) in pieces.iter_mut().zip(slots) {
            let (iov_base, iov_len) = (buffer.as_mut_ptr().cast(), buffer.len());
            let piece = piece.write(libc::iovec { iov_base, iov_len });
            let name = &raw mut message.source;
            let name_len = size_of_val(&message.source) as libc::socklen_t;
            let mut msg_hdr = message_header(name.cast(), name_len, piece, 1);
            msg_hdr.msg_control = (&raw mut message.control).cast();
            msg_hdr.msg_controllen = size_of_val(&message.control) as _;
            let _ = headers.push(libc::mmsghdr { msg_hdr, msg_len: 0 });
        }
        // SAFETY: There are no more headers than messages. Each has a buffer, a source and a control
        // area of the given lengths, all borrowed from `batch` for longer than the call.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // A refusal concerns an earlier datagram, not this call.
                Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(0),
                _ => Err(error),
            };
        }
        batch.len = received as usize;
        if batch.len == wanted {
            batch.wanted = (4 * wanted).min(batch.messages.len());
        }
        for (message, header) in batch.messages[..batch.len].iter_mut().zip(&headers) {
            message.len = header.msg_len as usize;
            message.segment_bytes = message.told_segment_bytes(&header.msg_hdr);
        }
        Ok(batch.len)
    }

    /// Sleeps until datagrams arrive, somebody calls [`wake`](Self::wake), or `timeout` is over (`None`
    /// means no limit). Returns whether datagrams have arrived. One wake ends one wait.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.wait_any(&[], timeout)
    }

    /// Sleeps as [`wait_readable`](Self::wait_readable) does, until datagrams arrive at this socket or at
    /// one of `others`.
    pub fn wait_any(&self, others: &[RxSocket], timeout: Option<Duration>) -> io::Result<bool> {
        let mut fds = heapless::Vec::<PollFd<'_>, { 2 + OTHERS_MAX }>::new();
        let _ = fds.push(PollFd::new(&self.socket, PollFlags::IN));
        let _ = fds.push(PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN));
        for other in others {
            let pushed = fds.push(PollFd::new(&other.socket, PollFlags::IN));
            debug_assert!(pushed.is_ok(), "at most OTHERS_MAX sockets");
        }
        // A timeout that does not fit the kernel's type is centuries long.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        if !fds[1].revents().is_empty() {
            // The read empties the counter; another waiter may have been faster.
            match rustix::io::read(&self.wake, &mut [0; 8]) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let arrived = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(arrived(&fds[0]) || fds[2..].iter().any(arrived))
    }

    /// Ends the current [`wait_readable`](Self::wait_readable), or else the next one.
    pub fn wake(&self) {
        // The write fails only if the counter is full, and then a wake is already pending.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Buffers for the trains that one system call receives.
pub struct RxBatch {
    bytes: Box<[u8]>,
    messages: Box<[ReceivedTrain]>,
    len: usize,
    /// Number of trains that the next call asks for.
    wanted: usize,
}

/// A received datagram, as its sender sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Address of the sender.
    pub source: SocketAddr,
    /// Payload of the datagram, without UDP's header.
    pub bytes: &'a [u8],
}

impl RxBatch {
    /// Makes room for `messages` trains, 1 to 16, of 64 KiB each.
    pub fn new(messages: usize) -> Self {
        let messages = messages.clamp(1, MESSAGES_MAX);
        RxBatch {
            bytes: vec![0; messages * MESSAGE_BYTES_MAX].into_boxed_slice(),
            messages: vec![ReceivedTrain::EMPTY; messages].into_boxed_slice(),
            len: 0,
            wanted: 1,
        }
    }

    /// Returns the datagrams of the last receive in order of arrival, with trains cut into their
    /// datagrams.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let buffers = self.bytes.chunks_exact(MESSAGE_BYTES_MAX);
        self.messages[..self.len].iter().zip(buffers).flat_map(|(message, buffer)| {
            let source = message.source();
            buffer[..message.len]
                .chunks(message.segment_bytes)
                .map(move |bytes| Datagram { source, bytes })
        })
    }
}

/// The kernel's description of a train.
#[derive(Clone)]
struct ReceivedTrain {
    source: libc::sockaddr_in6,
    control: Control<c_int>,
    len: usize,
    segment_bytes: usize,
}

impl ReceivedTrain {
    const EMPTY: ReceivedTrain = ReceivedTrain {
        // SAFETY: The type consists of integers, for which all zeros is a valid value.
        source: unsafe { mem::zeroed() },
        // SAFETY: The type consists of integers, for which all zeros is a valid value.
        control: unsafe { mem::zeroed() },
        len: 0,
        segment_bytes: MESSAGE_BYTES_MAX,
    };

    /// Reads the length of all datagrams but the last from the control message; a single datagram has no
    /// such message.
    fn told_segment_bytes(&self, message: &libc::msghdr) -> usize {
        let Control { header, data, .. } = self.control;
        let told = message.msg_controllen as u64 >= Control::<c_int>::LEN as u64
            && (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_UDP, libc::UDP_GRO)
            && data > 0;
        if told { data as usize } else { MESSAGE_BYTES_MAX }
    }

    fn source(&self) -> SocketAddr {
        if c_int::from(self.source.sin6_family) == libc::AF_INET {
            // SAFETY: The kernel wrote a `sockaddr_in`, which is shorter and needs no stricter
            // alignment.
            let v4 = unsafe { (&raw const self.source).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()
        } else {
            let v6 = &self.source;
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into()
        }
    }
}
