//! Tests of the page: over HTTP, and in a real browser.

mod browser;
mod http;
mod script;
mod served;
