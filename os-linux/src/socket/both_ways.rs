//! Messages in both directions over the sockets of one connection.

use std::io;

use invar_core::error::Ends;
use invar_core::socket::{Links, ResumableSocket};

use super::recv::{Inbound, RecvComm};
use super::send::SendComm;
use crate::tcp::OobStream;

impl SendComm {
    /// Makes the receiving end for messages in the other direction over the same sockets. Each socket is
    /// a stream in both directions, and this end uses only one. Call this at most once, and the peer
    /// must do the same before it sends. An acknowledge then travels with the next message back
    /// instead of in its own packet.
    ///
    /// The sockets close when both ends are dropped. Unread bytes then reset them, so both sides must
    /// first have received everything.
    pub fn way_back(&mut self) -> io::Result<RecvComm> {
        self.goes_both_ways();
        let (lanes, threads) = self.lanes.sockets();
        let links =
            cloned(&self.control, &self.main, lanes, &self.ends, self.resumption.is_some())?;
        let mut comm = RecvComm::new(links, threads, self.resumption.clone());
        comm.goes_both_ways();
        Ok(comm)
    }
}

impl RecvComm {
    /// Makes the sending end for messages in the other direction; [`SendComm::way_back`] makes the
    /// receiving end.
    ///
    /// # Errors
    /// `ENOTCONN` if the connection has failed, or the system's error.
    pub fn way_back(&mut self) -> io::Result<SendComm> {
        self.goes_both_ways();
        let Some(Inbound { lanes, main, .. }) = &self.links else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let (lanes, threads) = lanes.sockets();
        let resumes = self.resumption.is_some();
        let links = cloned(&self.control, main, lanes, &self.ends, resumes)?;
        // Both ends agree on the lengths of messages in this direction, so none is cut.
        Ok(SendComm::new(links, threads, false, self.resumption.clone()))
    }
}

/// Duplicates the sockets of a connection, for messages in the other direction.
///
/// Control then has the frames of both directions, and their ends exchange no views.
///
/// Both ends then send on all sockets, so no socket is left to keepalive. Instead, control gives up a
/// silent peer. Control carries few frames, because a sender reads its peer's frames at the latest when
/// [`AHEAD_MESSAGES`](invar_core::socket::AHEAD_MESSAGES) are ahead. So the buffers of a peer that does
/// not read still accept these frames, and the peer's host acknowledges them.
///
/// A socket that is lost later goes on over two connections, one for each direction.
fn cloned<'a>(
    control: &ResumableSocket<OobStream>,
    main: &ResumableSocket<OobStream>,
    lanes: impl Iterator<Item = &'a ResumableSocket<OobStream>>,
    ends: &Ends,
    resumes: bool,
) -> io::Result<Links<OobStream>> {
    if !control.is_up() || !main.is_up() {
        return Err(io::ErrorKind::NotConnected.into());
    }
    control.stream().bound_silence()?;
    let way_back = |socket: &ResumableSocket<OobStream>| {
        Ok::<_, io::Error>(socket.way_back(socket.stream().try_clone()?))
    };
    Ok(Links {
        control: way_back(control)?,
        main: way_back(main)?,
        lanes: lanes.map(way_back).collect::<io::Result<_>>()?,
        ends: ends.clone(),
        shares_views: false,
        resumes,
    })
}
