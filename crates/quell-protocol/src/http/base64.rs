//! Base64 with padding (RFC 4648 section 4), for byte sequences in structured fields.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` to `text` in base64.
pub(super) fn encode(bytes: &[u8], text: &mut String) {
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            if place > chunk.len() {
                text.push('=');
                continue;
            }
            let index = bits >> (18 - 6 * place) & 0x3f;
            let letter = usize::try_from(index)
                .ok()
                .and_then(|index| ALPHABET.get(index));
            text.extend(letter.map(|letter| char::from(*letter)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 4648 section 10.
    #[test]
    fn vectors() {
        for (bytes, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut text = String::new();
            encode(bytes.as_bytes(), &mut text);
            assert_eq!(text, expected, "{bytes}");
        }
    }

    #[test]
    fn the_last_letters() {
        let mut text = String::new();
        encode(&[0xfb, 0xff, 0xbf], &mut text);
        assert_eq!(text, "+/+/");
    }
}
