"""The door of the operator's pages."""

from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.core.exceptions import ValidationError

from tenants.errors import ApiError
from tenants.guessing import check_password


class SignInForm(AdminAuthenticationForm):
    """Guessing is as slow here as at the application's own door."""

    def clean(self) -> dict[str, Any]:
        login, password = map(self.cleaned_data.get, ("username", "password"))
        if self.request is not None and login and password:
            try:
                self.user_cache = check_password(self.request, login, password)
            except ApiError as error:
                raise ValidationError(error.message) from error
            self.confirm_login_allowed(self.user_cache)
        return self.cleaned_data
