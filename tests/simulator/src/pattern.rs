//! The content of test messages. Each message differs from all others at every offset, and no block of a
//! message repeats.

/// Byte `at` of message `seed`.
pub fn pattern_byte(seed: usize, at: usize) -> u8 {
    let place = (at as u64).wrapping_add((seed as u64).wrapping_mul(0x9e37_79b9));
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// The first `len` bytes of message `seed`.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| pattern_byte(seed, at)).collect()
}
