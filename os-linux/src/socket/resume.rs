//! How the sockets of an end go on over new connections.

use std::mem;

use invar_core::conn::StreamError;
use invar_core::error::{Ends, Error};
use invar_core::socket::{ResumableSocket, ResumeTimes, SocketNews};

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
    /// Whether no socket is known to be lost.
    pub(super) is_whole: bool,
    /// Whether this end has given up or reset its other sockets since all were there.
    has_acted: bool,
    /// Whether the user knows that sockets are lost.
    has_warned: bool,
}

impl Resumption {
    pub(super) fn new(times: ResumeTimes, data: DataSettings) -> Self {
        Resumption { times, data, is_whole: true, has_acted: false, has_warned: false }
    }

    /// Makes a lost socket go on over a new connection, as far as possible without waiting.
    ///
    /// # Errors
    /// [`ResumableSocket::poll`] has failed: the peer lives no more, or the time is over.
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

    /// Notes whether all sockets move bytes. Tells the user if they do so again.
    pub(super) fn note(&mut self, is_whole: bool, ends: &Ends) {
        self.is_whole = is_whole;
        if is_whole {
            self.has_acted = false;
            if mem::take(&mut self.has_warned) {
                log::warn!("{ends}: the TCP connections were made anew");
            }
        }
    }

    /// Looks which sockets of an end are lost, even if nobody moves bytes over them, and acts once until all are there
    /// again. An end that calls gives up all connections: they cross the same network, and the peer may have lost
    /// others. An end that waits for the peer's call in vain resets the first `resettable` sockets, so that the peer
    /// calls. Returns whether it has done so.
    ///
    /// # Errors
    /// A socket is lost and not resumed.
    pub(super) fn attend<'a>(
        &mut self,
        sockets: impl Iterator<Item = &'a mut Socket>,
        now_ns: u64,
        resettable: usize,
    ) -> Result<bool, Error> {
        let mut sockets: Vec<&mut Socket> = sockets.collect();
        let is_calling = sockets.iter().any(|socket| socket.is_calling());
        let mut needs_act = false;
        for socket in &mut sockets {
            if socket.is_up()
                && let Some(error) = socket.stream().failure()
            {
                socket.lose_sending(error)?;
            }
            if is_calling && socket.stream().is_silent() {
                socket.suspect(now_ns);
            }
            needs_act |= match is_calling {
                true => !socket.is_up(),
                false => socket.is_uncalled(now_ns, ALERT_NS),
            };
        }
        if !needs_act || mem::replace(&mut self.has_acted, true) {
            return Ok(false);
        }
        if is_calling {
            sockets.into_iter().for_each(|socket| socket.suspect(now_ns));
            return Ok(false);
        }
        sockets.into_iter().take(resettable).filter(|socket| socket.is_up()).try_for_each(reset)?;
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
