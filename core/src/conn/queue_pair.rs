//! A queue pair without a comm. Its caller posts WRITEs, READs and SENDs, as a benchmark of a NIC does.

use core::ops::Range;

use super::exchange::{Exchange, parse};
use super::link::{Peer, Verbs, udp_port};
use super::stage::Side;
use super::wire::{MESSAGE_BYTES_MAX, QpInfo};
use super::{CommSettings, Wire};
use crate::auth::Session;
use crate::error::{CompletionError, Ends, Error, Report};
use crate::fifo::DEPTH_MAX;
use crate::nic::{
    Access, Memory, Nic, NicError, QpOptions, QpTransition, RecvWr, SendFlags, SendOpcode, SendWr,
    Sge, Wc, WcStatus,
};

/// Bytes of [`QueuePair::info`].
pub const QUEUE_PAIR_INFO_BYTES: usize = MESSAGE_BYTES_MAX;

/// READs that either end may have outstanding, as many as the software NIC allows.
const READS_MAX: u8 = 16;

/// A queue pair and memory that its peer may read and write. The caller carries the [info](Self::info)
/// of each end to the other.
pub struct QueuePair<N: Nic> {
    verbs: Verbs<N>,
    ends: Ends,
    /// Address and key of the peer's memory, once the peer is known.
    peer_memory: Option<(u64, u32)>,
}

impl<N: Nic> QueuePair<N> {
    /// The most send requests, and the most receives, that may be posted and not complete.
    pub const DEPTH: usize = DEPTH_MAX;

    /// Creates a queue pair in INIT, and `bytes` of memory. The session gives the first packet sequence
    /// numbers and, if both ends agree on packet tags, their keys.
    ///
    /// # Errors
    /// A setting is out of its range, or the NIC refuses.
    pub fn create(
        nic: N,
        pd: N::Pd,
        us: (Side, Session),
        settings: CommSettings,
        bytes: usize,
    ) -> Result<Self, Error> {
        if N::RAILS_MAX > 1 {
            return Err(Error::Argument("a single queue pair does not run over several rails"));
        }
        let settings = CommSettings {
            wire: Wire::Invar,
            fifo_depth: Self::DEPTH as u16,
            recovery_timeout_ns: 0,
            ece: false,
            flush: false,
            // The last byte of a WRITE arrives last, as programs that wait for it expect.
            options: settings.options - QpOptions::ADAPTIVE_ROUTING,
            ..settings
        };
        if let Some(fault) = settings.fault() {
            return Err(Error::Argument(fault));
        }
        let verbs = Verbs::create(nic, pd, us, settings, 1, bytes, None)?;
        // A comm's peer does not READ.
        let (pkey_index, port_num) = (settings.pkey_index, verbs.port.port_num);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        verbs.nic.modify_qp(&verbs.qp, &QpTransition::Reset)?;
        let init = QpTransition::Init { pkey_index, port_num, access };
        verbs.nic.modify_qp(&verbs.qp, &init)?;
        let ends = Ends {
            qpn: verbs.nic.qp_num(&verbs.qp),
            udp_port: udp_port(verbs.port.link_layer, verbs.port.udp_port),
            ..Ends::local(verbs.nic.name(), verbs.port.gid)
        };
        Ok(QueuePair { verbs, ends, peer_memory: None })
    }

    /// The description of this end for [`QueuePair::connect`] at the peer.
    pub fn info(&self) -> [u8; QUEUE_PAIR_INFO_BYTES] {
        let verbs = &self.verbs;
        let (fifo_rkey, fifo_addr) = (verbs.control_rkey(), verbs.control_addr());
        let info = QpInfo { fifo_rkey, fifo_addr, ..verbs.info(verbs.port.active_mtu) };
        let mut exchange = Exchange::new(Wire::Invar);
        exchange.put_message(&verbs.preface(verbs.settings.depth()), &info);
        let mut bytes = [0; QUEUE_PAIR_INFO_BYTES];
        bytes.copy_from_slice(exchange.message());
        bytes
    }

    /// Moves the queue pair to RTS, towards the peer with this info.
    ///
    /// # Errors
    /// The bytes are no info of a peer, the two ends do not fit, or the NIC refuses.
    pub fn connect(&mut self, info: &[u8]) -> Result<(), Error> {
        let verbs = &mut self.verbs;
        let (preface, mut info) = parse(Wire::Invar, info, 1, true)?;
        info.mtu = info.mtu.min(verbs.port.active_mtu);
        self.peer_memory = Some((info.fifo_addr, info.fifo_rkey));
        let ours = verbs.preface(verbs.settings.depth());
        let peer = Peer { reads: READS_MAX, ..Peer::new(info, preface, &ours) };
        peer.note(&mut self.ends);
        verbs.start(&peer)
    }

    /// The memory of this end.
    pub fn memory(&self) -> &N::Memory {
        &self.verbs.control
    }

    /// Posts a signaled request. `at` are bytes of this end's memory: the source, or the target of a
    /// READ. A WRITE or READ meets the peer's memory at the offset `peer_at`.
    ///
    /// # Errors
    /// The bytes are outside of the memory, the queue pair is not connected, or the NIC refuses.
    #[inline]
    pub fn post(
        &self,
        opcode: SendOpcode,
        wr_id: u64,
        at: Range<usize>,
        peer_at: u64,
    ) -> Result<(), Error> {
        let (addr, rkey) = self.peer_memory.ok_or(Error::Argument("no peer is known yet"))?;
        let wr = SendWr {
            wr_id,
            opcode,
            flags: SendFlags::SIGNALED,
            remote_addr: addr.wrapping_add(peer_at),
            rkey,
            sge: self.sge(at)?,
            ..SendWr::default()
        };
        Ok(self.verbs.nic.post_send(&self.verbs.qp, &[wr])?)
    }

    /// Posts a receive into bytes of this end's memory.
    ///
    /// # Errors
    /// The bytes are outside of the memory, or the NIC refuses.
    #[inline]
    pub fn post_recv(&self, wr_id: u64, at: Range<usize>) -> Result<(), Error> {
        let wr = RecvWr { wr_id, sge: self.sge(at)?, ..RecvWr::default() };
        Ok(self.verbs.nic.post_recv(&self.verbs.qp, &wr)?)
    }

    #[inline]
    fn sge(&self, at: Range<usize>) -> Result<Sge, Error> {
        let len = at.end.checked_sub(at.start).filter(|_| at.end <= self.memory().len());
        let Some(length) = len.and_then(|len| u32::try_from(len).ok()) else {
            return Err(Error::Argument("bytes outside of the queue pair's memory"));
        };
        let addr = self.verbs.control_addr() + at.start as u64;
        Ok(Sge { addr, length, lkey: self.verbs.control_lkey() })
    }

    /// Takes completions, oldest first, and returns their number.
    ///
    /// # Errors
    /// A request ended in error, or the completion queue can no longer be polled.
    #[inline]
    pub fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        let polled = self.verbs.nic.poll(&self.verbs.cq, wcs).map_err(NicError::from)?;
        let polled = polled as usize;
        match wcs.iter().take(polled).find(|wc| wc.status != WcStatus::SUCCESS) {
            Some(wc) => Err(self.failed(wc)),
            None => Ok(polled),
        }
    }

    #[cold]
    fn failed(&self, wc: &Wc) -> Error {
        let CommSettings { timeout, retry_cnt, .. } = self.verbs.settings;
        let port_trouble = self.verbs.port_trouble(0);
        let (status, qpn, vendor_err) = (wc.status, wc.qp_num, wc.vendor_err);
        let error = CompletionError { status, qpn, vendor_err, timeout, retry_cnt, port_trouble };
        Error::Completion(error)
    }

    /// Checks that the device still works; see [`Nic::check`].
    ///
    /// # Errors
    /// The device or the queue pair has failed.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.verbs.nic.check(&self.verbs.qp)?)
    }

    /// Joins an error of this queue pair with a description of both ends.
    pub fn report(&self, error: Error) -> Report<'_> {
        self.ends.report(error)
    }
}
