//! Assets: scripts and styles, in the binary. Their addresses change with their bytes, so browsers keep
//! them for ever.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use quell_protocol::http::{Problem, ProblemKind};
use sha2::{Digest as _, Sha256};

use super::page::PageError;
use crate::reply;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Path of assets.
const FOLDER: &str = "/console/assets/";

/// A year.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// Name, type and bytes of a file.
macro_rules! asset {
    ($name:literal, $kind:ident, $folder:literal) => {
        ($name, $kind, include_bytes!(concat!($folder, $name)))
    };
}

/// Those in `vendored` are others' (`vendored/fetch.sh`).
const ASSETS: [(&str, &str, &[u8]); 7] = [
    asset!("console.css", STYLE, "assets/"),
    asset!("console.js", SCRIPT, "assets/"),
    asset!("icon.svg", IMAGE, "assets/"),
    asset!("htmx.min.js", SCRIPT, "vendored/"),
    asset!("sse.min.js", SCRIPT, "vendored/"),
    asset!("uPlot.iife.min.js", SCRIPT, "vendored/"),
    asset!("uPlot.min.css", STYLE, "vendored/"),
];

/// The first digits of each asset's SHA-256, in quotes.
static TAGS: LazyLock<[String; ASSETS.len()]> = LazyLock::new(|| {
    ASSETS.map(|(_, _, bytes)| {
        let digest = Sha256::digest(bytes);
        let digits = digest.iter().take(8).map(|byte| format!("{byte:02x}"));
        format!("\"{}\"", digits.collect::<String>())
    })
});

/// The address of an asset, for a page.
pub(super) fn url(name: &str) -> String {
    let tag = index(name).and_then(|index| TAGS.get(index));
    let tag = tag.map_or("", |tag| tag.trim_matches('"'));
    format!("{FOLDER}{name}?v={tag}")
}

fn index(name: &str) -> Option<usize> {
    ASSETS.iter().position(|(asset, ..)| *asset == name)
}

/// Serves an asset.
pub(super) async fn asset(request: Request) -> Response {
    let name = request
        .uri()
        .path()
        .strip_prefix(FOLDER)
        .unwrap_or_default();
    let found = index(name).and_then(|index| ASSETS.get(index).zip(TAGS.get(index)));
    let Some(((_, kind, bytes), tag)) = found else {
        let detail = format!("the console has no file {name:?}");
        return PageError::from(Problem::new(ProblemKind::NotFound, detail)).into_response();
    };
    let shown = request.headers().get(IF_NONE_MATCH);
    let is_known = shown.is_some_and(|shown| shown.as_bytes() == tag.as_bytes());
    let kind = HeaderValue::from_static(kind);
    let mut response = match is_known {
        true => reply::reply(StatusCode::NOT_MODIFIED, kind, ""),
        false => reply::reply(StatusCode::OK, kind, *bytes),
    };
    let fields = response.headers_mut();
    fields.insert(CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        fields.insert(ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_assets_together_are_small() {
        let bytes: usize = ASSETS.iter().map(|(_, _, bytes)| bytes.len()).sum();
        assert!(bytes < 150_000, "{bytes} bytes");
    }

    #[test]
    fn the_files_of_others_are_those_on_record_with_their_licences() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/vendored");
        let check = std::process::Command::new("sha256sum")
            .args(["--check", "--strict", "files.sha256"])
            .current_dir(folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&check.stdout);
        assert!(check.status.success(), "{check:?}");
        assert!(said.contains("LICENSE.uplot: OK") && said.contains("uPlot.min.css: OK"));
    }
}
