//! Request signing for AgentRun.

use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Url;
use ring::{digest, hmac};

use super::http::host_of;

const ALGORITHM: &str = "AGENTRUN4-HMAC-SHA256";
const PAYLOAD: &str = "UNSIGNED-PAYLOAD";
const REQUEST: &str = "aliyun_v4_request";
const PRODUCT: &str = "agentrun";

/// The credentials of a signature.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signer<'a> {
    pub(super) key_id: &'a str,
    pub(super) secret: &'a str,
    pub(super) token: Option<&'a str>,
    pub(super) region: &'a str,
}

impl Signer<'_> {
    /// Returns the headers to add to a request.
    pub(super) fn headers(&self, method: &str, url: &Url, now: SystemTime) -> Vec<(&'static str, String)> {
        let (date, time) = format_date(now);
        let mut headers =
            vec![("host", host_of(url)), ("x-acs-content-sha256", PAYLOAD.to_owned()), ("x-acs-date", time)];
        headers.extend(self.token.map(|token| ("x-acs-security-token", token.to_owned())));
        let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
        let listed: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let (path, query) = (url.path(), canonical_query(url));
        let canonical = format!("{method}\n{path}\n{query}\n{listed}\n{names}\n{PAYLOAD}");
        let hashed = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let signature = hex(&self.sign(&date, &format!("{ALGORITHM}\n{hashed}")));
        let scope = format!("{date}/{}/{PRODUCT}/{REQUEST}", self.region);
        let words = format!(
            "{ALGORITHM} Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            self.key_id
        );
        headers.remove(0);
        headers.push(("agentrun-authorization", words));
        headers
    }

    fn sign(&self, date: &str, text: &str) -> Vec<u8> {
        let first = format!("aliyun_v4{}", self.secret).into_bytes();
        [date, self.region, PRODUCT, REQUEST, text].iter().fold(first, |key, part| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
            hmac::sign(&key, part.as_bytes()).as_ref().to_vec()
        })
    }
}

/// Returns the query's encoded names and values, sorted by name.
fn canonical_query(url: &Url) -> String {
    let mut pairs: Vec<_> =
        url.query_pairs().map(|(name, value)| (percent_encode(&name), percent_encode(&value))).collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Percent-encodes everything but letters, digits and `-._~`.
pub(super) fn percent_encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the date, and the date with time, as signatures need them.
fn format_date(now: SystemTime) -> (String, String) {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years start in March, so that a leap day is the last day of a year; eras have four hundred years.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    let time = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
    (format!("{year:04}{month:02}{day:02}"), time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn signature(method: &str, url: &str, token: Option<&str>) -> String {
        let signer = Signer { key_id: "id", secret: "secret", token, region: "cn-hangzhou" };
        // 2026-01-02T03:04:05Z
        let now = UNIX_EPOCH + Duration::from_secs(1_767_323_045);
        let headers = signer.headers(method, &url.parse().unwrap(), now);
        headers.into_iter().find(|(name, _)| *name == "agentrun-authorization").unwrap().1
    }

    /// Recorded from `agentrun-sdk` 0.0.54 for the same requests and time.
    #[test]
    fn signatures_are_those_of_the_public_sdk() {
        let host = "https://123-ram.agentrun-data.cn-hangzhou.aliyuncs.com";
        let download = format!("{host}/sandboxes/s-1/filesystem/download?path=%2Ftmp%2Fa%20b%7Ec&x=");
        assert_eq!(
            signature("GET", &download, None),
            "AGENTRUN4-HMAC-SHA256 Credential=id/20260102/cn-hangzhou/agentrun/aliyun_v4_request,\
             SignedHeaders=host;x-acs-content-sha256;x-acs-date,\
             Signature=d3eaa51dc8efcd2cc73c0ffe751cc8e8110b1abbbf9c38bfe59da60743603de7"
        );
        assert_eq!(
            signature("POST", "http://127.0.0.1:8080/sandboxes", Some("token")),
            "AGENTRUN4-HMAC-SHA256 Credential=id/20260102/cn-hangzhou/agentrun/aliyun_v4_request,\
             SignedHeaders=host;x-acs-content-sha256;x-acs-date;x-acs-security-token,\
             Signature=3385e8280ee2267e4bf8b977d59e7fd4c79fa27865a4de80db138a65d7d8ad92"
        );
    }

    #[test]
    fn days_are_counted_over_leap_years() {
        let at = |seconds| format_date(UNIX_EPOCH + Duration::from_secs(seconds)).1;
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
