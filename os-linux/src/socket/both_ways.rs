//! Messages in both directions over the sockets of one connection.

use std::io;

use invar_core::error::Ends;
use invar_core::socket::Links;

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
        let (lanes, threads) = self.lanes.streams();
        let links = cloned(&self.control, &self.main, lanes, &self.ends)?;
        let mut comm = RecvComm::new(links, threads);
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
        let (lanes, threads) = lanes.streams();
        let links = cloned(&self.control, main, lanes, &self.ends)?;
        // Both ends agree on the lengths of messages in this direction, so none is cut.
        Ok(SendComm::new(links, threads, false))
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
fn cloned<'a>(
    control: &OobStream,
    main: &OobStream,
    lanes: impl Iterator<Item = &'a OobStream>,
    ends: &Ends,
) -> io::Result<Links<OobStream>> {
    control.bound_silence()?;
    Ok(Links {
        control: control.try_clone()?,
        main: main.try_clone()?,
        lanes: lanes.map(OobStream::try_clone).collect::<io::Result<_>>()?,
        ends: ends.clone(),
        shares_views: false,
    })
}
