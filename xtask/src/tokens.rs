//! Rust source as a tree of tokens, for checks that need names and shape but no types.
//!
//! Tokens instead of a syntax tree, because a macro's body is only tokens: so the functions inside
//! `proptest! { .. }` are held to the same rules.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Reads a file into tokens with line numbers.
///
/// # Errors
///
/// When the text is not Rust tokens; the error says where.
pub(crate) fn parse(path: &str, text: &str) -> Result<Vec<TokenTree>> {
    TokenStream::from_str(text)
        .map(|stream| stream.into_iter().collect())
        .map_err(|error| {
            let line = error.span().start().line;
            anyhow!("{path}:{line}: not Rust tokens: {error}")
        })
}

/// The tokens inside a group.
pub(crate) fn inside(token: &TokenTree) -> Option<(Delimiter, Vec<TokenTree>)> {
    match token {
        TokenTree::Group(group) => Some((group.delimiter(), group.stream().into_iter().collect())),
        _ => None,
    }
}

/// The line on which a token starts, counted from 1.
pub(crate) fn line(token: &TokenTree) -> usize {
    token.span().start().line
}

/// Whether the token is this identifier or keyword.
pub(crate) fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}

/// Whether the token is this punctuation mark.
pub(crate) fn is_punct(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}

/// A function with a body.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of `fn`, counted from 1, and how many lines it has.
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// Every function, at any depth and also in the bodies of macros.
pub(crate) fn functions(tokens: &[TokenTree]) -> Vec<Function> {
    let mut found = Vec::new();
    for start in 0..tokens.len() {
        found.extend(function(&tokens[start..]));
        if let Some((_, content)) = inside(&tokens[start]) {
            found.extend(functions(&content));
        }
    }
    found
}

/// The function that starts here; none for a function type or a function without a body.
fn function(tokens: &[TokenTree]) -> Option<Function> {
    let [keyword, TokenTree::Ident(name), rest @ ..] = tokens else {
        return None;
    };
    if !is_ident(keyword, "fn") {
        return None;
    }
    let end = |token: &&TokenTree| {
        is_punct(token, ';') || matches!(inside(token), Some((Delimiter::Brace, _)))
    };
    let TokenTree::Group(body) = rest.iter().find(end)? else {
        return None;
    };
    let close = body.span_close();
    Some(Function {
        name: name.to_string(),
        line: line(keyword),
        lines: close.end().line - line(keyword) + 1,
    })
}

/// The tokens without every item that `#[cfg(test)]` guards, at any depth of
/// modules; groups are left as they are.
pub(crate) fn without_test_items(tokens: &[TokenTree]) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let [first, tail @ ..] = rest {
        if starts_test_item(rest) {
            rest = after_item(tail);
        } else {
            kept.push(first.clone());
            rest = tail;
        }
    }
    kept
}

/// The content of an attribute that starts here: `ignore` of `#[ignore]`.
pub(crate) fn attribute(tokens: &[TokenTree]) -> Option<Vec<TokenTree>> {
    let [hash, rest @ ..] = tokens else {
        return None;
    };
    let body = match rest {
        [bang, body, ..] if is_punct(bang, '!') => body,
        [body, ..] => body,
        [] => return None,
    };
    match inside(body) {
        Some((Delimiter::Bracket, content)) if is_punct(hash, '#') => Some(content),
        _ => None,
    }
}

fn starts_test_item(tokens: &[TokenTree]) -> bool {
    let Some(content) = attribute(tokens) else {
        return false;
    };
    let [name, condition] = content.as_slice() else {
        return false;
    };
    let Some((Delimiter::Parenthesis, condition)) = inside(condition) else {
        return false;
    };
    is_ident(name, "cfg") && condition.len() == 1 && is_ident(&condition[0], "test")
}

/// The tokens after the item whose attribute's `#` was just taken: the item ends with its braces or
/// with a semicolon.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let end = tokens.iter().position(|token| {
        is_punct(token, ';') || matches!(inside(token), Some((Delimiter::Brace, _)))
    });
    end.map_or(&[], |end| &tokens[end + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: &[TokenTree]) -> String {
        tokens.iter().cloned().collect::<TokenStream>().to_string()
    }

    #[test]
    fn test_items_are_left_out_and_others_kept() {
        let source = "fn a() {} #[cfg(test)] mod tests { fn b() {} } #[cfg(test)] use x; \
                      #[cfg(unix)] fn c() {}";
        let tokens = parse("sample.rs", source).unwrap();
        let kept = text(&without_test_items(&tokens));
        assert_eq!(
            kept,
            text(&parse("", "fn a() {} #[cfg(unix)] fn c() {}").unwrap())
        );
    }

    #[test]
    fn broken_source_names_the_line() {
        let error = parse("sample.rs", "fn a() {}\nfn b( {}\n").unwrap_err();
        assert!(error.to_string().starts_with("sample.rs:"), "{error}");
    }
}
