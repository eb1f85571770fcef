//! Receiving.

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

use super::{Control, UDP_NO_CHECK6_RX, bind, grow_buffer, message_header, set_option};

/// Trains taken by one system call.
const MESSAGES_MAX: usize = 16;

/// Room for the longest train.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// The socket on which a software NIC receives. Any thread may use it.
#[derive(Debug)]
pub struct RxSocket {
    socket: Socket,
    wake: OwnedFd,
    offload: bool,
}

impl RxSocket {
    /// Listens at `addr`; port 0 is one that the kernel picks.
    pub fn bind(addr: SocketAddr) -> io::Result<Self> {
        let socket = bind(addr)?;
        grow_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
        if addr.is_ipv6() {
            set_option(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
        let offload = set_option(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1).is_ok();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(RxSocket { socket, wake, offload })
    }

    /// The address at which the socket receives, with its port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let addr = self.socket.local_addr()?;
        Ok(addr.as_socket().expect("bound to an IP address"))
    }

    /// Whether the kernel hands over whole trains (`UDP_GRO`, Linux 5.0).
    pub fn offload(&self) -> bool {
        self.offload
    }

    /// Size of the receive buffer that the kernel granted, counted in its own way (a datagram
    /// takes up more than its bytes).
    pub fn buffer_bytes(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// Fills `batch` with what has arrived, oldest first, forgetting what was in it. Says how many
    /// trains there are now; 0 where nothing has arrived.
    ///
    /// Asks for one train, and for more while as many come as were asked for: to learn that there
    /// is no second one takes the kernel as long as the first.
    pub fn recv_batch(&self, batch: &mut RxBatch) -> io::Result<usize> {
        let wanted = batch.wanted;
        (batch.len, batch.wanted) = (0, 1);
        // As long as the longest batch, but most of them are of one train.
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
        // SAFETY: no more headers than there are messages, each with a buffer, a source and a
        // control area of the lengths given, all borrowed from `batch` for longer than the call.
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
                // A refusal is about a datagram sent earlier, not about this call.
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

    /// Sleeps until datagrams have arrived, somebody calls [`wake`](Self::wake), or `timeout` is
    /// over (`None` is no limit). Says whether datagrams have arrived. One wake ends one wait.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        // A timeout that the kernel cannot hold is centuries long.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
        if !fds[1].revents().is_empty() {
            // Empties the counter; another waiter may have been faster.
            match rustix::io::read(&self.wake, &mut [0; 8]) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(!fds[0].revents().is_empty())
    }

    /// Ends a [`wait_readable`](Self::wait_readable), the one under way or else the next.
    pub fn wake(&self) {
        // The only error is that the counter is full, and then a wake is pending already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Buffers for what one system call receives.
pub struct RxBatch {
    bytes: Box<[u8]>,
    messages: Box<[Message]>,
    len: usize,
    /// How many trains to ask for next.
    wanted: usize,
}

/// A datagram as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// The sender's address.
    pub source: SocketAddr,
    /// Its payload, UDP's header left out.
    pub bytes: &'a [u8],
}

impl RxBatch {
    /// Room for `messages` trains, 1 to 16, of 64 KiB each.
    pub fn new(messages: usize) -> Self {
        let messages = messages.clamp(1, MESSAGES_MAX);
        RxBatch {
            bytes: vec![0; messages * MESSAGE_BYTES_MAX].into_boxed_slice(),
            messages: vec![Message::EMPTY; messages].into_boxed_slice(),
            len: 0,
            wanted: 1,
        }
    }

    /// The datagrams received last, in order of arrival, trains cut into what was sent.
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

/// The kernel's description of one train.
#[derive(Clone)]
struct Message {
    source: libc::sockaddr_in6,
    control: Control<c_int>,
    len: usize,
    segment_bytes: usize,
}

impl Message {
    const EMPTY: Message = Message {
        // SAFETY: integers: all zeros is a value.
        source: unsafe { mem::zeroed() },
        // SAFETY: as above.
        control: unsafe { mem::zeroed() },
        len: 0,
        segment_bytes: MESSAGE_BYTES_MAX,
    };

    /// Length of all datagrams of the train but the last, from the control message; a lone
    /// datagram has none.
    fn told_segment_bytes(&self, message: &libc::msghdr) -> usize {
        let Control { header, data, .. } = self.control;
        let told = message.msg_controllen as u64 >= Control::<c_int>::LEN as u64
            && (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_UDP, libc::UDP_GRO)
            && data > 0;
        if told { data as usize } else { MESSAGE_BYTES_MAX }
    }

    fn source(&self) -> SocketAddr {
        if c_int::from(self.source.sin6_family) == libc::AF_INET {
            // SAFETY: the kernel wrote a `sockaddr_in`, which is shorter and no more aligned.
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
