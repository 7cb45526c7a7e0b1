//! Refusal page: the status and body with which a rule refuses an end user, in place of the usual ones.

use alloc::sync::Arc;
use core::fmt;

/// The longest body of a page, in bytes: it is sent with every refusal.
pub const MAX_PAGE_BODY: usize = 8 * 1024;

/// The longest content type of a page, in bytes.
pub const MAX_CONTENT_TYPE: usize = 127;

/// The content type of a page that says none.
pub const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// The status and body of a refusal; what is left out stays as usual: 429 and a problem document.
///
/// The text is sent as it is. It contains nothing of the request.
///
/// ```
/// use quell_core::refusal_page::RefusalPage;
///
/// let page = RefusalPage::new()
///     .status(403)?
///     .body("<h1>Slow down</h1>", "text/html; charset=utf-8")?;
/// assert_eq!(page.status_code(), Some(403));
/// # Ok::<(), quell_core::refusal_page::PageError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalPage {
    status: Option<u16>,
    body: Option<PageBody>,
}

/// The body of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageBody {
    text: Arc<str>,
    content_type: Arc<str>,
}

/// Reason why a page cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// A status that refuses nothing.
    Status,
    /// An empty body.
    EmptyBody,
    /// A body longer than [`MAX_PAGE_BODY`].
    LongBody,
    /// A content type that is not one.
    ContentType,
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => {
                f.write_str("this status refuses nothing: write 400 to 599, such as 403")
            }
            Self::EmptyBody => f.write_str("an empty body: write a text, or leave it out"),
            Self::LongBody => write!(
                f,
                "a body that is too long: write at most {MAX_PAGE_BODY} bytes"
            ),
            Self::ContentType => write!(
                f,
                "no content type: write one such as `text/html; charset=utf-8`, of at most {MAX_CONTENT_TYPE} bytes"
            ),
        }
    }
}

impl core::error::Error for PageError {}

impl RefusalPage {
    /// A page that changes nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            status: None,
            body: None,
        }
    }

    /// Sets the HTTP status, from 400 to 599.
    ///
    /// # Errors
    /// [`PageError::Status`].
    pub fn status(mut self, status: u16) -> Result<Self, PageError> {
        if !(400..=599).contains(&status) {
            return Err(PageError::Status);
        }
        self.status = Some(status);
        Ok(self)
    }

    /// Sets the body, of 1 to [`MAX_PAGE_BODY`] bytes, and its content type.
    ///
    /// # Errors
    /// [`PageError`] if one of them cannot be sent.
    pub fn body(mut self, text: &str, content_type: &str) -> Result<Self, PageError> {
        if text.is_empty() {
            return Err(PageError::EmptyBody);
        }
        if text.len() > MAX_PAGE_BODY {
            return Err(PageError::LongBody);
        }
        if !is_content_type(content_type) {
            return Err(PageError::ContentType);
        }
        self.body = Some(PageBody {
            text: Arc::from(text),
            content_type: Arc::from(content_type),
        });
        Ok(self)
    }

    /// The status; `None` leaves the usual one.
    #[must_use]
    pub const fn status_code(&self) -> Option<u16> {
        self.status
    }

    /// The body; `None` leaves the problem document.
    #[must_use]
    pub const fn page_body(&self) -> Option<&PageBody> {
        self.body.as_ref()
    }
}

impl PageBody {
    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The content type: visible ASCII and spaces.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }
}

/// Returns true if `text` is `type/subtype`, with or without parameters, in bytes that a header may have.
fn is_content_type(text: &str) -> bool {
    let token = |part: &str| {
        let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        !part.is_empty() && part.bytes().all(is_of_token)
    };
    let essence = text.split(';').next().unwrap_or_default().trim_end();
    let is_visible = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let is_named = essence
        .split_once('/')
        .is_some_and(|(kind, subtype)| token(kind) && token(subtype));
    text.len() <= MAX_CONTENT_TYPE && is_visible && is_named
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use alloc::vec;

    use super::*;

    #[test]
    fn a_status_refuses() {
        for (status, fits) in [(399, false), (400, true), (599, true), (600, false)] {
            assert_eq!(RefusalPage::new().status(status).is_ok(), fits, "{status}");
        }
    }

    #[test]
    fn a_body_is_bounded_and_has_a_type() {
        let longest = String::from_utf8(vec![b'a'; MAX_PAGE_BODY]).unwrap();
        let page = |text: &str, kind: &str| RefusalPage::new().body(text, kind).map(|_| ());
        assert_eq!(page(&longest, PLAIN_TEXT), Ok(()));
        assert_eq!(page(&(longest + "a"), PLAIN_TEXT), Err(PageError::LongBody));
        assert_eq!(page("", PLAIN_TEXT), Err(PageError::EmptyBody));
        for kind in ["text/html", "application/problem+json", "a/b; c=\"d e\""] {
            assert_eq!(page("a", kind), Ok(()), "{kind}");
        }
        for kind in ["", "html", "/html", "text/", "a b/c", "a/b\r\nX: y", "a/ü"] {
            assert_eq!(page("a", kind), Err(PageError::ContentType), "{kind}");
        }
    }
}
