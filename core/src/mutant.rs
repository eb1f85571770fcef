//! Bugs that tests plant, one at a time, to prove that the simulator catches them. Without the feature
//! `mutants` there are none.

#[cfg(feature = "mutants")]
use core::sync::atomic::{AtomicU8, Ordering};

macro_rules! mutants {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// A bug in the recovery of a connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Mutant {
            $($(#[doc = $text])+ $name,)+
        }

        impl Mutant {
            /// All bugs that can be planted.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)+];

            /// Whether the bug is one of connections of several rails.
            pub const fn is_of_rails(self) -> bool {
                self as u8 >= Mutant::ResendOvertaking as u8
            }
        }
    };
}

mutants! {
    /// The old queue pairs work until they are replaced.
    NoFence,
    /// The queue pairs are replaced without waiting for the completions of the old ones.
    NoDrain,
    /// The receiver reports a row as arrived that has not arrived.
    ReportTooMany,
    /// The receiver reports an arrived row as missing.
    ReportTooFew,
    /// The receiver reports the rows that had arrived when it last looked, before its queue pairs stopped.
    ReportFromMemory,
    /// Every attempt after the first has the number of the first.
    ReuseAttempt,
    /// The sender sends the first missing row not again.
    ResendTooFew,
    /// The sender sends the missing rows again in the wrong order.
    ResendInWrongOrder,
    /// The sender sends other bytes than the first time.
    ResendOtherBytes,
    /// The sender does not send the first piece of a message again.
    ResendLaterPieces,
    /// The sender does not finish the sends that have arrived.
    ForgetArrived,
    /// The sender takes all sends for arrived.
    FinishAll,
    /// The sender counts grouped messages twice.
    CountGroupTwice,
    /// The receiver posts no receive again for the first missing row.
    RepostTooFew,
    /// The receiver does not write the first unused row of slots again.
    RewriteTooFew,
    /// The receiver writes slots again with the `idx` of the previous turn of the ring.
    RewriteOldIdx,
    /// The receiver waits for the completion of slots that it does not write again.
    AwaitOldSlots,
    /// A later attempt of the peer is ignored.
    IgnoreLaterAttempt,
    /// A group of messages that was being matched is forgotten.
    ForgetGroup,
    /// An end forgets the messages beside the queue pairs that the peer may not have.
    ForgetKept,
    /// Half a message of a lost stream is joined with the first bytes of the next stream.
    KeepHalfMessage,
    /// The queue pairs of the flushes are not replaced.
    KeepReaders,
    /// The sender sends a row again that has overtaken a missing one.
    ResendOvertaking,
    /// The receiver waits for a row again that has overtaken a missing one.
    AwaitOvertaking,
    /// The sender uses a row before the keys of its buffers have arrived.
    UseOldKeys,
    /// The receiver writes slots with the key of the rail that was first before.
    WriteToOldRail,
    /// The two ends decide differently which rails carry data.
    TrustAlone,
}

/// 0, or one more than the number of the planted bug.
#[cfg(feature = "mutants")]
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Plants a bug in all connections of this process, in place of the one planted before.
#[cfg(feature = "mutants")]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.store(mutant.map_or(0, |mutant| mutant as u8 + 1), Ordering::Relaxed);
}

/// Whether a bug is planted.
#[inline(always)]
pub(crate) fn is_planted(mutant: Mutant) -> bool {
    #[cfg(feature = "mutants")]
    return PLANTED.load(Ordering::Relaxed) == mutant as u8 + 1;
    #[cfg(not(feature = "mutants"))]
    {
        let _ = mutant;
        false
    }
}
