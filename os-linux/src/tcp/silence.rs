//! How long a TCP connection bears a silent host (`tcp(7)`). The host is gone, or the network to it is out.
//!
//! `TCP_RTO_MAX_MS` of Linux 6.15 would end long pauses between repetitions. But the kernel also gives up a peer
//! without room for data after twice that time.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Time after which a new connection gives up a silent host. [`OobStream::bear_silence`] sets another.
///
/// [`OobStream::bear_silence`]: super::OobStream::bear_silence
pub const SILENCE_MAX: Duration = Duration::from_secs(25);

/// The longest silence that a connection bears. The kernel refuses some longer times.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Gives up a host that acknowledges nothing for `silence`, or that has no room for data for so long. Without
/// unacknowledged data keepalive notices the silence, otherwise `TCP_USER_TIMEOUT` does. A time above a day is a day.
pub(super) fn bound(socket: &impl AsFd, silence: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&keepalive(silence))?;
    socket.set_tcp_user_timeout(Some(silence.min(LONGEST)))
}

/// Bounds the silence of a host only while there is no unacknowledged data. With such data the host may have no room
/// for any time, as long as it answers. Otherwise the kernel gives up after a quarter of an hour
/// (`net.ipv4.tcp_retries2`).
pub(super) fn bound_idle(socket: &impl AsFd, silence: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&keepalive(silence))?;
    socket.set_tcp_user_timeout(None)
}

/// The first probe leaves after two fifths of the time, and three more follow. The kernel counts seconds, and takes
/// at most 32,767 of them.
fn keepalive(silence: Duration) -> TcpKeepalive {
    let fifth = (silence / 5).clamp(Duration::from_secs(1), Duration::from_secs(16_000));
    TcpKeepalive::new().with_time(2 * fifth).with_interval(fifth).with_retries(3)
}
