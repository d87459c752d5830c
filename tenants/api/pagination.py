from rest_framework.pagination import LimitOffsetPagination


class Pagination(LimitOffsetPagination):
    """`limit` (at most 500) and `offset`."""

    default_limit = 50
    max_limit = 500
