"""Fixtures that the whole suite shares."""
