//! What went wrong in a call to a NIC.

use core::fmt;

/// The verb that failed, under its libibverbs name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the libibverbs function that `name` gives")]
pub enum Verb {
    QueryPort,
    AllocMemory,
    AllocPd,
    RegMr,
    CreateCq,
    CreateQp,
    ModifyQp,
    PostSend,
    PostRecv,
    PollCq,
}

impl Verb {
    /// The libibverbs function.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::QueryPort => "ibv_query_port",
            Verb::AllocMemory => "allocating registered memory",
            Verb::AllocPd => "ibv_alloc_pd",
            Verb::RegMr => "ibv_reg_mr",
            Verb::CreateCq => "ibv_create_cq",
            Verb::CreateQp => "ibv_create_qp",
            Verb::ModifyQp => "ibv_modify_qp",
            Verb::PostSend => "ibv_post_send",
            Verb::PostRecv => "ibv_post_recv",
            Verb::PollCq => "ibv_poll_cq",
        }
    }
}

/// A verb that failed: which, with what `errno`, and why in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicError {
    /// The call.
    pub verb: Verb,
    /// The system's error number; 0 where there is none.
    pub errno: i32,
    /// The cause as the adapter knows it: "send queue full", "not in state INIT".
    pub cause: &'static str,
    /// For [`Verb::PostSend`]: which work request of the list was refused.
    pub index: u8,
}

impl NicError {
    /// An error that no list of work requests is part of.
    pub const fn new(verb: Verb, errno: i32, cause: &'static str) -> Self {
        NicError { verb, errno, cause, index: 0 }
    }
}

impl fmt::Display for NicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}", self.verb.name(), self.cause)?;
        if self.errno != 0 {
            write!(f, " (errno {})", self.errno)?;
        }
        Ok(())
    }
}

impl core::error::Error for NicError {}

/// A completion queue that cannot be polled any more: overrun, or its device is gone. Small,
/// since polling is what idle programs do.
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
