//! What a device reports of a port beside completions.

use core::fmt;
use core::time::Duration;

/// What befell a port [lately](PortNotices::WITHIN), each with how long ago it last did. None of it ends a connection, but it may
/// be why one has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortNotices {
    /// `IBV_EVENT_PORT_ERR`.
    pub went_down: Option<Duration>,
    /// `IBV_EVENT_PORT_ACTIVE`.
    pub came_up: Option<Duration>,
    /// `IBV_EVENT_GID_CHANGE`.
    pub changed_gids: Option<Duration>,
    /// Packets that could not be sent, and why not. A NIC in software knows that of its own host.
    pub could_not_send: Option<(&'static str, Duration)>,
}

impl PortNotices {
    /// What came before it has nothing to do with what happens now: peers are given up within
    /// minutes.
    pub const WITHIN: Duration = Duration::from_secs(300);

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        *self == PortNotices::default()
    }
}

/// `went down 2.1 s before, came up 0.4 s before, could not send 0.4 s before (no route)`
impl fmt::Display for PortNotices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortNotices { went_down, came_up, changed_gids, could_not_send } = *self;
        let all = [
            ("went down", went_down),
            ("came up", came_up),
            ("changed its GIDs", changed_gids),
            ("could not send", could_not_send.map(|(_, ago)| ago)),
        ];
        let told = all.into_iter().filter_map(|(what, ago)| Some((what, ago?)));
        told.enumerate().try_for_each(|(i, (what, ago))| {
            let before = if i == 0 { "" } else { ", " };
            write!(f, "{before}{what} {:.1} s before", ago.as_secs_f32())
        })?;
        could_not_send.map_or(Ok(()), |(why, _)| write!(f, " ({why})"))
    }
}
