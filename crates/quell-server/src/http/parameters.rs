//! Parameters: what a query string says.

use quell_protocol::http::{Problem, ProblemKind};

/// Names and values, percent-decoded; `+` is a space.
pub(super) fn pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

/// A parameter that nothing is known of.
pub(super) fn unknown(name: &str, known: &str) -> Box<Problem> {
    let detail = format!("unknown parameter {name:?}: write {known}");
    Box::new(Problem::new(ProblemKind::InvalidRequest, detail))
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'+', _) => bytes.push(b' '),
            (b'%', [high, low, beyond @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    bytes.push(high * 16 + low);
                    rest = beyond;
                }
                _ => bytes.push(b'%'),
            },
            (other, _) => bytes.push(*other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes() {
        let said: Vec<_> = pairs("a=1%2f2+3&&b&c=%zz%4&%41=%f0%9f%90%a2").collect();
        let expected = [("a", "1/2 3"), ("b", ""), ("c", "%zz%4"), ("A", "🐢")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(said, expected);
    }
}
