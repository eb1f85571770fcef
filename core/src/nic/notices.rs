//! Reports of a device about a port, beside completions.

use core::fmt;
use core::time::Duration;

/// Recent events of a port, each with the time since it last occurred; see [`PortNotices::WITHIN`]. No
/// such event ends a connection, but it may be the reason why a connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortNotices {
    /// Time since the port went down (`IBV_EVENT_PORT_ERR`).
    pub went_down: Option<Duration>,
    /// Time since the port came up (`IBV_EVENT_PORT_ACTIVE`).
    pub came_up: Option<Duration>,
    /// Time since the port's GID table changed (`IBV_EVENT_GID_CHANGE`).
    pub changed_gids: Option<Duration>,
    /// Reason and time of the last packets that could not be sent. A software NIC knows this for its
    /// own host.
    pub could_not_send: Option<(&'static str, Duration)>,
}

impl PortNotices {
    /// The age up to which an event counts as recent. Older events do not explain a current failure,
    /// since peers are given up within minutes.
    pub const WITHIN: Duration = Duration::from_secs(300);

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        *self == PortNotices::default()
    }
}

/// Lists the events:
/// `went down 2.1 s before, came up 0.4 s before, could not send 0.4 s before (no route)`.
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
