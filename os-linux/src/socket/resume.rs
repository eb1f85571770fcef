//! How the sockets of an end go on over new connections.

use std::mem;

use invar_core::conn::StreamError;
use invar_core::error::{Ends, Error};
use invar_core::socket::{ResumableSocket, ResumeTimes, SocketNews};

use crate::clock::now_ns;
use crate::tcp::{DataSettings, OobStream};

/// Time for which an acceptor waits for the peer's call, until it resets the other sockets of the connection. Somebody on
/// the way may have reset a socket at this end alone.
const ALERT_NS: u64 = 500_000_000;

type Socket = ResumableSocket<OobStream>;

/// The settings of one end's sockets after a loss.
#[derive(Clone, Debug)]
pub(super) struct Resumption {
    pub(super) times: ResumeTimes,
    pub(super) data: DataSettings,
    /// Whether this end, an acceptor, has reset sockets since all were there.
    pub(super) has_alerted: bool,
    /// Whether the user knows that sockets are lost.
    pub(super) has_warned: bool,
}

impl Resumption {
    /// Makes a lost socket go on over a new connection, as far as possible without waiting.
    ///
    /// # Errors
    /// Those of [`ResumableSocket::poll`].
    pub(super) fn poll(
        &mut self,
        socket: &mut Socket,
        now_ns: u64,
        ends: &Ends,
    ) -> Result<SocketNews, Error> {
        let news = socket.poll(now_ns, self.times)?;
        match news {
            SocketNews::None => {}
            SocketNews::Lost(error) if !mem::replace(&mut self.has_warned, true) => {
                log::warn!("{ends}: {error}: the TCP connections will be made anew");
            }
            SocketNews::Lost(error) => log::debug!("{ends}: a further socket is lost: {error}"),
            SocketNews::Renewed => {
                if let Err(error) = self.data.apply(socket.stream_mut()) {
                    log::warn!("{ends}: the settings of a connection that was made anew: {error}");
                }
            }
            SocketNews::Resumed(_) => log::info!("{ends}: a TCP connection was made anew"),
        }
        Ok(news)
    }

    /// Tells the user that no socket is lost any more.
    pub(super) fn is_whole(&mut self, ends: &Ends) {
        if mem::take(&mut self.has_warned) {
            log::warn!("{ends}: the TCP connections were made anew");
        }
    }

    /// Looks which sockets of an end are lost, even if nobody moves bytes over them. An end that waits for the peer's call
    /// in vain resets the sockets that `may_reset` allows, so that the peer calls. Returns whether it waits in vain.
    ///
    /// # Errors
    /// A socket is lost and not resumed.
    pub(super) fn attend<'a>(
        &mut self,
        sockets: impl Iterator<Item = &'a mut Socket>,
        now_ns: u64,
        may_reset: impl Fn(usize) -> bool,
    ) -> Result<bool, Error> {
        let mut sockets: Vec<&mut Socket> = sockets.collect();
        let mut is_uncalled = false;
        for socket in &mut sockets {
            if socket.is_up()
                && let Some(error) = socket.stream().failure()
            {
                socket.lose_sending(error)?;
            }
            if socket.is_calling() && socket.stream().is_silent() {
                socket.suspect(now_ns);
            }
            is_uncalled |= !socket.is_calling() && socket.is_uncalled(now_ns, ALERT_NS);
        }
        if !is_uncalled || mem::replace(&mut self.has_alerted, true) {
            self.has_alerted &= !sockets.iter().all(|socket| socket.is_up());
            return Ok(false);
        }
        let others = sockets.into_iter().enumerate().filter(|(index, _)| may_reset(*index));
        for (_, socket) in others.filter(|(_, socket)| socket.is_up()) {
            reset(socket)?;
        }
        Ok(true)
    }
}

/// Resets a connection, so that the peer calls. The peer has as much time as after an outage, which may be what keeps it
/// from calling.
///
/// # Errors
/// The socket is not resumed.
pub(super) fn reset(socket: &mut Socket) -> Result<(), Error> {
    socket.stream().reset();
    socket.lose(StreamError::Os(libc::ECONNABORTED))
}

/// Gives up all connections of an end that calls, once one of them is lost. They cross the same network, and the peer may
/// have lost others.
pub(super) fn suspect_all<'a>(sockets: impl Iterator<Item = &'a mut Socket>) {
    let now_ns = now_ns();
    sockets.for_each(|socket| socket.suspect(now_ns));
}
