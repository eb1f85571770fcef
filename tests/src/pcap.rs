//! Classic pcap files: what tcpdump and Wireshark read and write.
//!
//! ```text
//! file header   magic u32 | 2 u16 | 4 u16 | 0 u32 | 0 u32 | snap length u32 | link type u32
//! each frame    seconds u32 | µs or ns u32 | captured bytes u32 | bytes on the wire u32 | bytes
//! ```
//!
//! The magic tells byte order and the unit of time. Read in either order and unit;
//! [`invar_linux::pcap`] writes them.

use std::fmt;

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;
const FILE_HEADER_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 16;

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet (1).
    Ethernet,
    /// An IP header (101).
    Raw,
    /// A link type that we do not know.
    Other(u32),
}

impl LinkType {
    fn from_code(code: u32) -> LinkType {
        match code {
            1 => LinkType::Ethernet,
            101 => LinkType::Raw,
            other => LinkType::Other(other),
        }
    }
}

/// One captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Since 1970.
    pub time_ns: u64,
    /// From the link's header on; fewer than were on the wire, if the capture cut them off.
    pub bytes: &'a [u8],
    link: LinkType,
}

impl<'a> Frame<'a> {
    /// The IP packet in it, with whatever pads it; `None` if there is none.
    pub fn ip(&self) -> Option<&'a [u8]> {
        match self.link {
            LinkType::Raw => Some(self.bytes),
            LinkType::Ethernet => {
                let (header, ip) = self.bytes.split_first_chunk::<14>()?;
                matches!(header[12..], [0x08, 0x00] | [0x86, 0xdd]).then_some(ip)
            }
            LinkType::Other(_) => None,
        }
    }
}

/// Why bytes are no pcap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcapError {
    /// Not a pcap file: its first four bytes, in little endian.
    Magic(u32),
    /// The file ends within a header or a frame.
    Truncated {
        /// Where that begins.
        offset: usize,
        /// Its bytes.
        needed: usize,
    },
}

impl fmt::Display for PcapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PcapError::Magic(magic) => write!(f, "not a pcap file: it begins with {magic:#010x}"),
            PcapError::Truncated { offset, needed } => {
                write!(f, "pcap file ends within the {needed} bytes that begin at {offset}")
            }
        }
    }
}

impl std::error::Error for PcapError {}

/// The frames of a pcap file in memory. After an error there are no more.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    file: &'a [u8],
    offset: usize,
    link: LinkType,
    big_endian: bool,
    ns_per_tick: u64,
}

impl<'a> Reader<'a> {
    /// Reads the file header.
    pub fn new(file: &'a [u8]) -> Result<Reader<'a>, PcapError> {
        let link = LinkType::Other(0);
        let mut reader = Reader { file, offset: 0, link, big_endian: false, ns_per_tick: 1 };
        let header = reader.bytes(FILE_HEADER_BYTES)?;
        let magic = reader.u32(header, 0);
        reader.big_endian = matches!(magic.swap_bytes(), MAGIC_US | MAGIC_NS);
        reader.ns_per_tick = match reader.u32(header, 0) {
            MAGIC_US => 1000,
            MAGIC_NS => 1,
            _ => return Err(PcapError::Magic(magic)),
        };
        // The upper bits may say how long the frame check sequence is.
        reader.link = LinkType::from_code(reader.u32(header, 20) & 0xffff);
        Ok(reader)
    }

    /// What the frames begin with.
    pub fn link(&self) -> LinkType {
        self.link
    }

    fn frame(&mut self) -> Result<Frame<'a>, PcapError> {
        let header = self.bytes(FRAME_HEADER_BYTES)?;
        let seconds = u64::from(self.u32(header, 0));
        let ticks = u64::from(self.u32(header, 4));
        let bytes = self.bytes(self.u32(header, 8) as usize)?;
        let time_ns = seconds * 1_000_000_000 + ticks * self.ns_per_tick;
        Ok(Frame { time_ns, bytes, link: self.link })
    }

    fn bytes(&mut self, needed: usize) -> Result<&'a [u8], PcapError> {
        let rest = &self.file[self.offset..];
        let bytes =
            rest.get(..needed).ok_or(PcapError::Truncated { offset: self.offset, needed })?;
        self.offset += needed;
        Ok(bytes)
    }

    fn u32(&self, header: &[u8], at: usize) -> u32 {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Frame<'a>, PcapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset == self.file.len() {
            return None;
        }
        let frame = self.frame();
        if frame.is_err() {
            self.offset = self.file.len();
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests;
