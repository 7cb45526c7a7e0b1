//! Refusal page, as written: the status, the body and its type.

use std::sync::Arc;

use quell_core::refusal_page::{PLAIN_TEXT, RefusalPage};

use crate::cursor::Fields;
use crate::path::Spanned;
use crate::period::whole;
use crate::problem::Sink;

/// The fields that say how a rule refuses an end user.
#[derive(Debug)]
pub(crate) struct RawRefusalPage {
    status: Option<Spanned<u16>>,
    body: Option<Spanned<Arc<str>>>,
    body_type: Option<Spanned<Arc<str>>>,
}

impl RawRefusalPage {
    pub(super) fn read(fields: &Fields<'_>, sink: &mut Sink) -> Self {
        let page = Self {
            status: fields.read("status", sink, status),
            body: fields.read("body", sink, body),
            body_type: fields.read("body_type", sink, body_type),
        };
        if let Some(kind) = &page.body_type
            && fields.lacks("body")
        {
            let message = "there is no body of this type: write `body` as well, or leave it out";
            sink.problem(&kind.span, message);
        }
        page
    }

    /// The page; `None` if no field is written. Each field was checked when it was read.
    pub(crate) fn resolve(&self) -> Option<Arc<RefusalPage>> {
        let mut page = RefusalPage::new();
        if let Some(status) = &self.status {
            page = page.status(status.value).ok()?;
        }
        if let Some(body) = &self.body {
            let kind = self.body_type.as_ref().map(|kind| &*kind.value);
            page = page.body(&body.value, kind.unwrap_or(PLAIN_TEXT)).ok()?;
        }
        (page != RefusalPage::new()).then(|| Arc::new(page))
    }
}

fn status(text: &str) -> Result<u16, String> {
    let status = u16::try_from(whole(text)?).unwrap_or_default();
    let page = RefusalPage::new().status(status);
    page.map(|_| status).map_err(|error| error.to_string())
}

fn body(text: &str) -> Result<Arc<str>, String> {
    let page = RefusalPage::new().body(text, PLAIN_TEXT);
    page.map(|_| Arc::from(text))
        .map_err(|error| error.to_string())
}

fn body_type(text: &str) -> Result<Arc<str>, String> {
    let page = RefusalPage::new().body("any", text);
    page.map(|_| Arc::from(text))
        .map_err(|error| error.to_string())
}
