//! JSON queries: an accepted one can be written and read again, and is the same; a refused one gives
//! a problem document that says why. The same holds for requests about a key.

use quell_protocol::http::{BodyError, Problem, encode_query, parse_key, parse_query};

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(body: &[u8]) {
    match parse_query(body) {
        Ok(query) => {
            let written = encode_query(&query).expect("what came as JSON can go as JSON");
            let again = parse_query(written.as_bytes());
            assert_eq!(again.as_ref(), Ok(&query), "written as {written}");
        }
        Err(error) => check_refusal(&error),
    }
    if let Err(error) = parse_key(body) {
        check_refusal(&error);
    }
}

fn check_refusal(error: &BodyError) {
    let problem = Problem::from(error);
    assert_eq!(problem.status / 100, 4, "{problem:?}");
    let json = serde_json::to_vec(&problem).expect("a problem is JSON");
    let again: Problem = serde_json::from_slice(&json).expect("and can be read");
    assert_eq!(again, problem);
}
