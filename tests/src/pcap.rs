//! Reads classic pcap files, the format of tcpdump and Wireshark.
//!
//! ```text
//! file header   magic u32 | 2 u16 | 4 u16 | 0 u32 | 0 u32 | snap length u32 | link type u32
//! each frame    seconds u32 | µs or ns u32 | captured bytes u32 | bytes on the wire u32 | bytes
//! ```
//!
//! The magic tells the unit of time. Numbers are in little endian, as most hosts write them.
//! [`invar_linux::pcap`] writes such files.

use std::fmt;

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;
const FILE_HEADER_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 16;

/// The kind of header with which a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Ethernet (1).
    Ethernet,
    /// An IP header (101).
    Raw,
    /// An unknown link type.
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

/// A captured frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The time since 1970, in nanoseconds.
    pub time_ns: u64,
    /// The bytes from the link's header on. The capture may have cut them off.
    pub bytes: &'a [u8],
    link: LinkType,
}

impl<'a> Frame<'a> {
    /// The IP packet in the frame, with any padding behind it, or `None`.
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

/// The reason why bytes are no pcap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcapError {
    /// The bytes are no pcap file. The field has their first four bytes in little endian.
    Magic(u32),
    /// The file ends within a header or a frame.
    Truncated {
        /// The offset where that header or frame begins.
        offset: usize,
        /// The bytes that it needs.
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

/// Iterates over the frames of a pcap file in memory. After an error the iterator ends.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    file: &'a [u8],
    offset: usize,
    link: LinkType,
    ns_per_tick: u64,
}

impl<'a> Reader<'a> {
    /// Reads the file header.
    pub fn new(file: &'a [u8]) -> Result<Reader<'a>, PcapError> {
        let link = LinkType::Other(0);
        let mut reader = Reader { file, offset: 0, link, ns_per_tick: 1 };
        let header = reader.bytes(FILE_HEADER_BYTES)?;
        reader.ns_per_tick = match word(header, 0) {
            MAGIC_US => 1000,
            MAGIC_NS => 1,
            magic => return Err(PcapError::Magic(magic)),
        };
        // The upper bits may tell the length of the frame check sequence.
        reader.link = LinkType::from_code(word(header, 20) & 0xffff);
        Ok(reader)
    }

    /// The kind of header with which the frames begin.
    pub fn link(&self) -> LinkType {
        self.link
    }

    fn frame(&mut self) -> Result<Frame<'a>, PcapError> {
        let header = self.bytes(FRAME_HEADER_BYTES)?;
        let seconds = u64::from(word(header, 0));
        let ticks = u64::from(word(header, 4));
        let bytes = self.bytes(word(header, 8) as usize)?;
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
}

fn word(header: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
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
