//! Hexadecimal digits, as quotes and escapes of paths have them.

/// The byte that two hexadecimal digits stand for; `None` if one of them is none.
pub(crate) fn byte(high: u8, low: u8) -> Option<u8> {
    Some(digit(high)? << 4 | digit(low)?)
}

const fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        b'A'..=b'F' => Some(letter - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        assert_eq!(byte(b'0', b'0'), Some(0));
        assert_eq!(byte(b'a', b'F'), Some(0xaf));
        assert_eq!(byte(b'F', b'f'), Some(0xff));
        for wrong in [b'g', b'G', b'/', b':', b'@', b'`', 0xff] {
            assert_eq!(byte(wrong, b'0'), None);
            assert_eq!(byte(b'0', wrong), None);
        }
    }
}
