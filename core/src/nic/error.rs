//! Errors of calls to a NIC.

use core::fmt;

use super::{Nic, SendWr};

/// The verb that failed, under its libibverbs name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is what `name` gives, mostly the libibverbs function")]
pub enum Verb {
    QueryPort,
    AllocMemory,
    AllocPd,
    RegMr,
    RegDmabufMr,
    CreateCq,
    CreateQp,
    ModifyQp,
    SetEce,
    PostSend,
    PostRecv,
    PollCq,
    AsyncEvent,
    QpEvent,
}

impl Verb {
    /// Name of the libibverbs function, or a description of the operation if there is no such function.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::QueryPort => "ibv_query_port",
            Verb::AllocMemory => "allocating registered memory",
            Verb::AllocPd => "ibv_alloc_pd",
            Verb::RegMr => "ibv_reg_mr",
            Verb::RegDmabufMr => "ibv_reg_dmabuf_mr",
            Verb::CreateCq => "ibv_create_cq",
            Verb::CreateQp => "ibv_create_qp",
            Verb::ModifyQp => "ibv_modify_qp",
            Verb::SetEce => "ibv_set_ece",
            Verb::PostSend => "ibv_post_send",
            Verb::PostRecv => "ibv_post_recv",
            Verb::PollCq => "ibv_poll_cq",
            Verb::AsyncEvent => "the device (ibv_get_async_event)",
            Verb::QpEvent => "the queue pair (ibv_get_async_event)",
        }
    }
}

/// A verb that failed, with its `errno` and a short cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicError {
    /// The verb that failed.
    pub verb: Verb,
    /// The system's error number; 0 if there is none.
    pub errno: i32,
    /// The cause as the adapter knows it: "send queue full", "not in state INIT".
    pub cause: &'static str,
    /// For [`Verb::PostSend`]: index of the refused work request in its list.
    pub index: u8,
    /// Names and values of arguments that help to explain the error. An empty name marks an unused
    /// entry.
    pub values: [(&'static str, u64); 3],
}

impl NicError {
    /// Creates an error without arguments, whose `index` is 0.
    pub const fn new(verb: Verb, errno: i32, cause: &'static str) -> Self {
        NicError { verb, errno, cause, index: 0, values: [("", 0); 3] }
    }

    /// Adds an argument's name and value. An error has room for three; further ones are dropped.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<u64>) -> Self {
        if let Some(free) = self.values.iter_mut().find(|(name, _)| name.is_empty()) {
            *free = (name, value.into());
        }
        self
    }
}

impl fmt::Display for NicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.verb.name(), self.cause)?;
        if self.errno != 0 {
            write!(f, " (errno {})", self.errno)?;
        }
        let place = (self.verb == Verb::PostSend)
            .then(|| ("number of the work request in its list", u64::from(self.index)));
        let values = self.values.into_iter().filter(|(name, _)| !name.is_empty());
        place.into_iter().chain(values).enumerate().try_for_each(|(i, (name, value))| {
            let before = if i == 0 { "; " } else { ", " };
            write!(f, "{before}{name} {value}")
        })
    }
}

impl core::error::Error for NicError {}

/// The place where a post of the data path may leave its error. An error in the answer would fill the
/// stack frame of every caller, and so cost 4 instructions per post.
#[derive(Debug, Default)]
pub struct Refusal(Option<NicError>);

/// A post was refused. The [`Refusal`] of the call has the error, or [`Nic::explain`](super::Nic::explain)
/// makes it. To explain a post where it is refused would keep addresses in registers during each post, and
/// so cost 8 instructions per message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The driver's error number; 0 if the error is in the [`Refusal`].
    pub errno: i32,
}

impl Refusal {
    /// Stores the error of a post.
    #[cold]
    #[inline(never)]
    pub fn because(&mut self, error: NicError) -> Refused {
        self.0 = Some(error);
        Refused { errno: 0 }
    }

    /// Takes the error of a refused post on `qp`, or lets the NIC explain it. `wrs` are the work requests of
    /// the post; a receive has none.
    pub(crate) fn take<N: Nic>(
        &mut self,
        refused: Refused,
        nic: &N,
        qp: &N::Qp,
        wrs: &[SendWr],
    ) -> NicError {
        self.0.take().unwrap_or_else(|| nic.explain(qp, wrs, refused))
    }
}

/// The error of a completion queue that can no longer be polled: the queue overran, or its device is
/// gone. The type is small because idle programs poll all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollError {
    /// The system's error number.
    pub errno: u16,
}

impl From<PollError> for NicError {
    fn from(error: PollError) -> Self {
        let cause = "the completion queue was overrun, or its device is gone";
        NicError::new(Verb::PollCq, i32::from(error.errno), cause)
    }
}

static_assertions::const_assert!(size_of::<Result<u32, PollError>>() <= size_of::<usize>());
