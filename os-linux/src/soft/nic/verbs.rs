//! The rest of the verbs, which programs for libibverbs need and the protocol does not.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use invar_core::nic::{Access, AddressVector, NicError, QpCap, QpType, RecvWr, Sge, Verb};
use invar_core::roce::qp::QpUpdate;

use super::{Cq, Mr, Pd, Qp, SoftNic, Srq, Window};
use crate::memory::HostMemory;
use crate::soft::device::{
    AsyncEvent, Awaited, Device, MrChange, QpConfig, SrqConfig, Subject, WindowType,
};

/// The transport service and the sizes of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpInit {
    /// The transport service.
    pub qp_type: QpType,
    /// Lengths of the queues.
    pub cap: QpCap,
    /// Maximum number of buffers of a send.
    pub send_sges_max: u32,
    /// Maximum number of buffers of a receive.
    pub recv_sges_max: u32,
}

impl SoftNic {
    /// Registers memory, as [`Nic::reg_mr`](invar_core::nic::Nic::reg_mr) does. Work requests and peers
    /// name its first byte by `addr`.
    ///
    /// # Errors
    /// The errors of [`Device::reg_mr`](crate::soft::Device::reg_mr).
    pub fn reg_mr_at(
        &self,
        pd: &Pd,
        memory: &HostMemory,
        addr: u64,
        access: Access,
    ) -> Result<Mr, NicError> {
        self.check(&pd.0.nic, Verb::RegMr)?;
        let key = self.port().lock().device.reg_mr(pd.0.number, memory, addr, access)?;
        Ok(Mr { nic: self.clone(), key })
    }

    /// Changes a memory region. Its key stays the same.
    ///
    /// # Errors
    /// The errors of [`Device::rereg_mr`](crate::soft::Device::rereg_mr).
    pub fn rereg_mr(
        &self,
        mr: &Mr,
        pd: Option<&Pd>,
        change: &MrChange<'_>,
    ) -> Result<(), NicError> {
        pd.map_or(Ok(()), |pd| self.check(&pd.0.nic, Verb::RegMr))?;
        let pd = pd.map(|pd| pd.0.number);
        let mut moving = self.port().lock();
        let memory = moving.device.rereg_mr(mr.key, pd, change)?;
        drop(moving);
        // The drop happens without the lock, because the memory's owner may run any code on drop.
        drop(memory);
        Ok(())
    }

    /// Allocates a memory window.
    ///
    /// # Errors
    /// The errors of [`Device::alloc_window`](crate::soft::Device::alloc_window).
    pub fn alloc_window(&self, pd: &Pd, kind: WindowType) -> Result<Window, NicError> {
        self.check(&pd.0.nic, Verb::RegMr)?;
        let key = self.port().lock().device.alloc_window(pd.0.number, kind)?;
        Ok(Window { nic: self.clone(), key })
    }

    /// Whether a memory window is bound to a region.
    pub fn is_bound(&self, region: &Mr) -> bool {
        self.port().lock().device.is_bound(region.key)
    }

    /// Creates a completion queue whose events call `notify`. The call happens while the NIC is locked,
    /// so `notify` must not call the NIC.
    ///
    /// # Errors
    /// The errors of [`Device::create_cq`](crate::soft::Device::create_cq).
    pub fn create_cq_notifying(
        &self,
        depth: usize,
        notify: impl Fn() + Send + 'static,
    ) -> Result<Cq, NicError> {
        let mut moving = self.port().lock();
        let number = moving.device.create_cq(depth)?;
        moving.notify.insert(number, Box::new(notify));
        drop(moving);
        Ok(Cq::new(self, number))
    }

    /// Changes the depth of a completion queue.
    ///
    /// # Errors
    /// The errors of [`Device::resize_cq`](crate::soft::Device::resize_cq).
    pub fn resize_cq(&self, cq: &Cq, depth: usize) -> Result<(), NicError> {
        self.port().lock().device.resize_cq(cq.number, depth)
    }

    /// Lets the next completion raise an event. With `solicited_only`, lets the next solicited completion or
    /// error do so. A completion that nobody has taken yet raises the event at once. Until the event, the NIC's
    /// thread drives the NIC, because the application may sleep.
    pub fn arm_cq(&self, cq: &Cq, solicited_only: bool) {
        self.await_event(cq, if solicited_only { Awaited::Solicited } else { Awaited::Completion });
    }

    /// Arms a queue as [`SoftNic::arm_cq`] does.
    pub(super) fn await_event(&self, cq: &Cq, awaited: Awaited) {
        let mut moving = self.port().lock();
        moving.device.arm_cq(cq.number, awaited);
        self.port().raise(&mut moving);
        let is_awaited = moving.device.is_awaited();
        let was_awaited = self.port().awaited.swap(is_awaited, Ordering::Relaxed);
        drop(moving);
        if is_awaited
            && !was_awaited
            && let Some(thread) = self.0.thread.handle()
        {
            thread.unpark();
        }
    }

    /// Creates a shared receive queue: `receives_max` and `sges_max` are the maximum numbers of receives and
    /// of buffers of a receive. `notify` is called for its events while the NIC is locked, so `notify` must
    /// not call the NIC.
    ///
    /// # Errors
    /// The errors of [`Device::create_srq`](crate::soft::Device::create_srq). `EINVAL`: the protection domain
    /// belongs to another NIC.
    pub fn create_srq(
        &self,
        pd: &Pd,
        receives_max: u32,
        sges_max: u32,
        notify: impl Fn(AsyncEvent) + Send + 'static,
    ) -> Result<Srq, NicError> {
        self.check(&pd.0.nic, Verb::CreateQp)?;
        let config = SrqConfig { pd: pd.0.number, receives_max, sges_max };
        let mut moving = self.port().lock();
        let number = moving.device.create_srq(&config)?;
        moving.listeners.insert(Subject::Srq(number), Box::new(notify));
        drop(moving);
        Ok(Srq { nic: self.clone(), number })
    }

    /// Sets the limit of a shared receive queue.
    ///
    /// # Errors
    /// The errors of [`Device::set_srq_limit`](crate::soft::Device::set_srq_limit).
    pub fn set_srq_limit(&self, srq: &Srq, limit: u32) -> Result<(), NicError> {
        self.port().post_ahead(|device| device.set_srq_limit(srq.number, limit))
    }

    /// Returns the limit of a shared receive queue.
    pub fn srq_limit(&self, srq: &Srq) -> u32 {
        self.port().lock().device.srq_limit(srq.number)
    }

    /// Posts receives to a shared receive queue: `post` gets a function that posts one.
    pub fn post_srq_recvs<R>(
        &self,
        srq: &Srq,
        post: impl FnOnce(&mut dyn FnMut(&RecvWr, &[Sge]) -> Result<(), NicError>) -> R,
    ) -> R {
        self.port()
            .post_ahead(|device| post(&mut |wr, list| device.post_srq_recv(srq.number, wr, list)))
    }

    /// Creates a queue pair whose sends complete to the first queue and receives to the second. With a
    /// shared receive queue, the queue pair takes its receives from there. `notify` is called for
    /// asynchronous events while the NIC is locked, so `notify` must not call the NIC.
    ///
    /// # Errors
    /// The errors of [`Device::create_qp`](crate::soft::Device::create_qp). `EINVAL`: an object belongs to
    /// another NIC.
    pub fn create_qp_with(
        &self,
        pd: &Pd,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<&Srq>,
        init: &QpInit,
        notify: impl Fn(AsyncEvent) + Send + 'static,
    ) -> Result<Qp, NicError> {
        let nics = [&pd.0.nic, &send_cq.nic, &recv_cq.nic];
        for nic in nics.into_iter().chain(srq.map(|srq| &srq.nic)) {
            self.check(nic, Verb::CreateQp)?;
        }
        let QpInit { qp_type, cap, send_sges_max, recv_sges_max } = *init;
        let (pd, send_cq, recv_cq) = (pd.0.number, send_cq.number, recv_cq.number);
        let srq = srq.map(|srq| srq.number);
        // Nothing else keeps an unreliable sender from sending more than a receiver of the same link takes.
        let link_mbps = NonZeroU32::new(self.0.attr.speed_mbps);
        let rate_mbps_max = link_mbps.filter(|_| qp_type != QpType::Rc);
        let config = QpConfig {
            pd,
            send_cq,
            recv_cq,
            cap,
            send_sges_max,
            recv_sges_max,
            srq,
            qp_type,
            rate_mbps_max,
        };
        let mut moving = self.port().lock();
        let qpn = moving.device.create_qp(&config)?;
        moving.listeners.insert(Subject::Qp(qpn), Box::new(notify));
        drop(moving);
        Ok(Qp { nic: self.clone(), qpn })
    }

    /// Changes attributes of a queue pair without a change of state.
    ///
    /// # Errors
    /// The errors of [`Device::update_qp`](crate::soft::Device::update_qp).
    pub fn update_qp(&self, qp: &Qp, update: &QpUpdate) -> Result<(), NicError> {
        self.port().post(|device| device.update_qp(qp.qpn, update))
    }

    /// Sends all that is due, acknowledges too, unless another call of this NIC takes longer than a
    /// millisecond. A process that is about to exit calls this.
    pub fn try_flush(&self) {
        self.port().try_flush();
    }

    /// Raises [`AsyncEvent::SqDrained`] once a queue pair has no send left that has begun.
    ///
    /// # Errors
    /// The errors of [`Device::notify_drained`](crate::soft::Device::notify_drained).
    pub fn notify_drained(&self, qp: &Qp) -> Result<(), NicError> {
        self.port().post(|device| device.notify_drained(qp.qpn))
    }

    /// Checks that datagrams can go to an address.
    ///
    /// # Errors
    /// The errors of [`Device::check_address`](crate::soft::Device::check_address).
    pub fn check_address(&self, address: &AddressVector) -> Result<(), NicError> {
        self.port().lock().device.check_address(address)
    }

    /// Sets the Q_Key of a queue pair.
    ///
    /// # Errors
    /// The errors of [`Device::set_qkey`](crate::soft::Device::set_qkey).
    pub fn set_qkey(&self, qp: &Qp, qkey: u32) -> Result<(), NicError> {
        self.port().lock().device.set_qkey(qp.qpn, qkey)
    }

    /// Posts sends to a queue pair: `post` gets the device and the queue pair's number. When `post` returns,
    /// this end sends as much as the window allows.
    #[inline]
    pub fn post_sends<R>(&self, qp: &Qp, post: impl FnOnce(&mut Device, u32) -> R) -> R {
        self.port().post(|device| post(device, qp.qpn))
    }

    /// Posts receives to a queue pair: `post` gets the device and the queue pair's number.
    #[inline]
    pub fn post_recvs<R>(&self, qp: &Qp, post: impl FnOnce(&mut Device, u32) -> R) -> R {
        self.port().post_ahead(|device| post(device, qp.qpn))
    }
}
