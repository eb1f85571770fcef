//! View frames: an end sends its view if its connection stands still; see [`stall`](crate::stall).

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use crate::stall::{EndView, ViewBytes};

/// Length of a view frame in bytes.
pub const VIEW_FRAME_BYTES: usize = size_of::<ViewFrameBytes>();

/// Byte layout of a view frame, little-endian.
///
/// ```text
/// byte 0       4      8      16     112
///      +-------+------+------+------+
///      | kind  | asks | zero | view |
///      +-------+------+------+------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ViewFrameBytes {
    kind: [u8; 4],
    asks: U32,
    zero: [u8; 8],
    view: ViewBytes,
}

assert_eq_size!(ViewFrameBytes, [u8; 112]);

const KIND: [u8; 4] = *b"VIEW";

/// The view of an end. View frames have no sequence number, and do not count among the frames of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewFrame {
    /// View of the end.
    pub view: EndView,
    /// Whether the end asks for the peer's view.
    pub asks: bool,
}

impl ViewFrame {
    /// Returns whether bytes begin with a view frame, of which at least the kind has arrived.
    pub fn is_begun(bytes: &[u8]) -> bool {
        bytes.starts_with(&KIND)
    }

    /// Encodes the frame.
    pub fn to_bytes(&self) -> [u8; VIEW_FRAME_BYTES] {
        let (asks, view) = (u32::from(self.asks).into(), self.view.to_bytes());
        transmute!(ViewFrameBytes { kind: KIND, asks, zero: [0; 8], view })
    }

    /// Decodes a frame that has [begun](Self::is_begun). Any bytes are a view, since a view only informs
    /// people.
    pub fn parse(bytes: &[u8; VIEW_FRAME_BYTES]) -> Self {
        let b: ViewFrameBytes = transmute!(*bytes);
        ViewFrame { view: EndView::parse(&b.view), asks: b.asks.get() != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_view_frame_survives_the_wire(bytes: [[u8; 16]; 7]) {
            let frame = ViewFrame::parse(&transmute!(bytes));
            let bytes = frame.to_bytes();
            prop_assert!(ViewFrame::is_begun(&bytes[..4]) && !ViewFrame::is_begun(&bytes[..3]));
            prop_assert_eq!(ViewFrame::parse(&bytes), frame);
        }
    }
}
